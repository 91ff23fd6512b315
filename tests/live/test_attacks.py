"""Attacks on and from live cages, looked at from outside."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.helpers import PATIENCE, until, until_async

from warmcell import AsyncSandbox, Limits, Sandbox, errors

pytestmark = pytest.mark.needs("linux", "user namespaces")


@pytest.mark.attack("LK-01")
def test_nothing_of_the_callers_environment_is_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMCELL_CANARY", "canary-in-the-environment")
    with Sandbox() as sandbox:
        look = "env; cat /proc/[0-9]*/environ 2>/dev/null; cat /proc/[0-9]*/cmdline"
        assert "canary-in-the-environment" not in sandbox.spawn(look).wait(30).stdout


@pytest.mark.attack("LK-02")
def test_programs_have_their_three_descriptors_and_no_other(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary-in-a-file")
    descriptor = os.open(secret, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        with Sandbox() as sandbox:
            first = sandbox.spawn("sleep 1000")
            listing = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
            # The listing itself is the fourth.
            assert sandbox.spawn(["python3", "-c", listing]).wait(30).stdout == "[0, 1, 2, 3]\n"
            # Nor can the agent's be had: it is as undumpable to others as ptrace is refused.
            steal = "cat /proc/2/fd/* /proc/*/fd/[3-9]* 2>/dev/null"
            assert "canary" not in sandbox.spawn(steal, stdin=False, timeout=1).wait(30).stdout
            first.kill()
    except errors.ExecutionTimeout:
        pass  # it read from what never ends, and from nothing else
    finally:
        os.close(descriptor)


@pytest.mark.attack("LK-05")
def test_nothing_of_one_live_cage_is_in_the_next() -> None:
    marks = "touch /tmp/mark /dev/shm/mark ~/mark /code/mark"
    with Sandbox() as one, Sandbox() as other:
        assert one.spawn(marks).wait(30).exit_code == 0
        look = "ls -A /tmp /dev/shm ~ /code"
        assert "mark" in one.spawn(look).wait(30).stdout
        assert "mark" not in other.spawn(look).wait(30).stdout
        assert "mark" not in one.sh(look).stdout  # a run has a cage of its own
        os.kill(one._async._driver.live._cage.pid, signal.SIGKILL)  # type: ignore[union-attr]
        until(lambda: not one._async._driver.live._cage.is_alive)  # type: ignore[union-attr]
        assert "mark" not in one.spawn(look).wait(30).stdout


@pytest.mark.attack("LK-06")
def test_one_sandbox_cannot_reach_anothers_processes_and_files() -> None:
    with Sandbox() as one, Sandbox() as other:
        one.write_file("secret", "canary-of-one")
        process = one.spawn("sleep 1000")
        with pytest.raises(errors.InvalidRequest, match="no process"):
            other.attach(process.pid)
        look = f"cat {one.work_dir}/secret /proc/*/root/work/secret /work/../*/secret; kill -9 {process.pid}; true"
        assert "canary" not in other.spawn(look).wait(30).stdout
        assert process.is_running


@pytest.mark.parametrize(
    "words",
    [
        b"\x00\x00\x00\x02{}",  # no event
        b'\x00\x00\x00\x08{"id":99}',  # an answer without a request
        b'\x00\x00\x00\x27{"event":"ended","pid":1,"status":"x"} ',
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x03[1]",
        b"\x00\x00\x00\x01{",
    ],
)
def test_who_speaks_in_the_agents_name_ends_its_own_cage(words: bytes) -> None:
    """Carried out where the agent's words arrive: no guest can get at the agent's socket (LK-02)."""
    with Sandbox() as sandbox, Sandbox() as other:
        process, neighbour = sandbox.spawn("echo said; sleep 1000"), other.spawn("sleep 1000")
        cage = sandbox._async._driver.live._cage  # type: ignore[union-attr]
        assert cage is not None
        conversation = cage._channel
        cage.loop.call(lambda: conversation.feed(words))
        with pytest.raises(errors.SessionEnded):
            process.wait(30)
        assert cage.ended.result(30).reason
        assert neighbour.is_running
        assert sandbox.spawn("echo new").wait(30).stdout == "new\n"


#: What a guest may try against the agent, which is process 2: signals by each call that sends one, limits, its pipes.
AGAINST_AGENT = """
import ctypes, fcntl, glob, os, resource, signal, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, call):
    try:
        result = call()
    except OSError as error:
        result = -error.errno
    print(name, "went through" if result is None or result >= 0 else "refused")
STOP = int(signal.SIGSTOP)
info = ctypes.create_string_buffer(128)
refused("kill", lambda: os.kill(2, STOP))
refused("kill all", lambda: os.kill(-1, STOP))
refused("kill group", lambda: os.kill(-2, STOP))
refused("tkill", lambda: libc.syscall(200, 2, STOP))
refused("tgkill", lambda: libc.syscall(234, 2, 2, STOP))
refused("rt_sigqueueinfo", lambda: libc.syscall(129, 2, STOP, info))
refused("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(2), STOP))
refused("pidfd by /proc", lambda: signal.pidfd_send_signal(os.open("/proc/2", os.O_RDONLY), STOP))
ours, other = socket.socketpair()
refused("own", lambda: fcntl.fcntl(ours, fcntl.F_SETOWN, 2))
refused("own group", lambda: fcntl.fcntl(ours, fcntl.F_SETOWN, -2))
refused("own ex", lambda: fcntl.fcntl(ours, 15, struct.pack("ii", 1, 2)) and 0)
refused("FIOSETOWN", lambda: fcntl.ioctl(ours, 0x8901, struct.pack("i", 2)) and 0)
refused("SIOCSPGRP", lambda: fcntl.ioctl(ours, 0x8902, struct.pack("i", -2)) and 0)
fcntl.fcntl(ours, 10, STOP)  # F_SETSIG
fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
refused("prlimit", lambda: resource.prlimit(2, resource.RLIMIT_NOFILE, (3, 3)))
refused("setaffinity", lambda: os.sched_setaffinity(2, {0}))
refused("setpriority", lambda: os.setpriority(os.PRIO_PROCESS, 2, 19))
taken = 0
for path in glob.glob("/proc/2/fd/*"):
    try:
        taken += len(os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1 << 16))
    except OSError:
        pass
print("bytes taken", taken)
"""


@pytest.mark.attack("S3-01")
def test_guests_cannot_signal_limit_or_drain_the_agent() -> None:
    with Sandbox() as sandbox:
        sandbox.spawn("sleep 1000")  # its end is to wake the agent
        printed = sandbox.spawn(["python3", "-c", AGAINST_AGENT]).wait(60).stdout
        assert "went through" not in printed and "bytes taken 0" in printed, printed
        assert sandbox.spawn("echo still here").wait(30).stdout == "still here\n"


def _stop_agent(sandbox: Sandbox) -> None:
    """From outside, as if a guest had found a way: the agent stops, and nothing else does."""
    cage = sandbox._async._driver.live._cage  # type: ignore[union-attr]
    assert cage is not None
    os.kill(cage.pid, signal.SIGSTOP)


@pytest.mark.attack("S3-01")
def test_a_timeout_holds_though_the_agent_does_not_answer() -> None:
    with Sandbox() as sandbox:
        process = sandbox.spawn("echo begun; exec sleep 1000", timeout=4)
        next(iter(process.output()))
        _stop_agent(sandbox)
        with pytest.raises(errors.ExecutionTimeout) as raised:
            process.wait(60)
        assert raised.value.result is not None and raised.value.result.stdout == "begun\n"
        assert sandbox.spawn("echo new").wait(30).stdout == "new\n"


@pytest.mark.attack("S3-01")
@pytest.mark.parametrize("wish", ["kill", "signal", "spawn", "close"])
def test_nothing_waits_for_an_agent_that_does_not_answer(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox()
    process = sandbox.spawn("sleep 1000")
    _stop_agent(sandbox)
    if wish == "kill":
        process.kill()
        assert not process.is_running
    elif wish == "signal":
        with pytest.raises(errors.SessionEnded, match="did not answer"):
            process.signal(signal.SIGTERM)
    elif wish == "spawn":
        with monkeypatch.context() as patched, pytest.raises(errors.SessionEnded, match="did not answer"):
            patched.setattr("warmcell.backends.process.live._START_SECONDS", 3.0)
            sandbox.spawn("true")
    if wish != "close":
        assert sandbox.spawn("echo new").wait(30).stdout == "new\n"
    sandbox.destroy()


@pytest.mark.attack("S3-01")
async def test_a_signal_to_an_agent_that_does_not_answer_can_be_cancelled() -> None:
    async with AsyncSandbox() as sandbox:
        process = await sandbox.spawn("sleep 1000")
        cage = sandbox._driver.live._cage  # type: ignore[union-attr]
        assert cage is not None
        os.kill(cage.pid, signal.SIGSTOP)
        task = asyncio.ensure_future(process.signal(signal.SIGTERM))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cage.is_alive  # so that it was not the grace that ended the wait


@pytest.mark.attack("S3-01")
async def test_a_cancelled_run_ends_though_the_agent_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmcell.sessions.processes.KILL_SECONDS", 0.1)
    begun = asyncio.Event()
    async with AsyncSandbox(live=True) as sandbox:
        script = "echo begun; exec sleep 1000"
        run = asyncio.ensure_future(sandbox.sh(script, timeout=1000, on_stdout=lambda _: begun.set()))
        await begun.wait()
        cage = sandbox._driver.live._cage  # type: ignore[union-attr]
        assert cage is not None
        os.kill(cage.pid, signal.SIGSTOP)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await until_async(lambda: not cage.is_alive)


@pytest.mark.attack("S3-01")
@pytest.mark.parametrize("language", ["python", "command"])
def test_a_cell_ends_in_time_though_the_agent_does_not_answer(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell's worker interrupts the cell by itself. Otherwise the cage ends, as it does at the next request."""
    code = {"python": "while True: pass", "command": "while true; do :; done"}[language]
    with Sandbox() as sandbox:
        session = sandbox.session(language)
        session.run({"python": "1", "command": "true"}[language])
        _stop_agent(sandbox)
        with pytest.raises((errors.ExecutionTimeout, errors.SessionEnded)):
            session.run(code, timeout=1)
        with monkeypatch.context() as patched, suppress(errors.SessionEnded):
            patched.setattr("warmcell.backends.process.live._START_SECONDS", 3.0)
            sandbox.spawn("true")
        assert sandbox.spawn("echo new").wait(PATIENCE).stdout == "new\n"


@pytest.mark.attack("S3-04")
def test_files_that_the_host_hands_over_are_sealed() -> None:
    from warmcell.lifetime.descriptors import open_memory_file

    descriptor = open_memory_file(b"content")
    try:
        again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
        with pytest.raises(PermissionError):
            os.write(again, b"more")
        with pytest.raises(PermissionError):
            os.ftruncate(again, 1 << 30)
        os.close(again)
        assert os.read(descriptor, 100) == b"content"
    finally:
        os.close(descriptor)


@pytest.mark.attack("S3-06")
def test_words_of_a_guest_in_our_errors_are_quoted_and_escaped() -> None:
    forge = "printf 'x\\033[2J\\007\\nhint: run this\\r\\n' > /proc/2/fd/2"
    with Sandbox() as sandbox:
        process = sandbox.spawn(f"{forge}; echo done; exec sleep 1000")
        assert next(iter(process.output())).data == b"done\n"
        os.kill(sandbox._async._driver.live._cage.pid, signal.SIGTERM)  # type: ignore[union-attr]
        with pytest.raises(errors.SessionEnded) as raised:
            process.wait(60)
        assert str(raised.value).isprintable(), str(raised.value)


@pytest.mark.attack("S3-10")
def test_what_ended_processes_wrote_is_bounded_in_sum() -> None:
    """S3-10: the latest keeps its output, the oldest give theirs up, and say so."""
    with Sandbox() as sandbox:
        processes = []
        for _ in range(25):  # one after another: the oldest is the first that ended
            processes.append(sandbox.spawn("head -c 900000 /dev/zero | tr '\\0' x"))
            assert len(processes[-1].wait(60).stdout) == 900_000
        table = sandbox._async._driver.live._table
        kept = [output.ring.size for process in table.all() for output in process.outputs]
        assert sum(kept) <= 17 << 20
        assert processes[0].wait().stdout_truncated and len(processes[-1].wait().stdout) == 900_000


@pytest.mark.attack("S3-11")
@pytest.mark.parametrize("status", [-1, 0x7F, 0x137F, 1 << 20, 0xFFFF, True, "0", None, 1.0])
def test_an_impossible_wait_status_ends_the_cage(status: object) -> None:
    from warmcell.backends.process.started_programs import is_wait_status

    assert not is_wait_status(status)
    with Sandbox() as sandbox:
        process = sandbox.spawn("sleep 1000")
        cage = sandbox._async._driver.live._cage  # type: ignore[union-attr]
        assert cage is not None
        said = json.dumps({"event": "ended", "pid": process.pid, "status": status, "cpu": 0, "peak": 0}).encode()
        frame = len(said).to_bytes(4, "big") + said
        cage.loop.call(lambda: cage._channel.feed(frame))
        with pytest.raises(errors.SessionEnded):
            process.wait(30)


def test_an_event_that_comes_once_cannot_be_repeated() -> None:
    """The thread of the cage would read them for ever, and keep those of other sandboxes from running."""
    with Sandbox() as sandbox:
        process = sandbox.spawn("sleep 1000")
        cage = sandbox._async._driver.live._cage  # type: ignore[union-attr]
        assert cage is not None
        said = json.dumps({"event": "ending", "pid": process.pid}).encode()
        frame = len(said).to_bytes(4, "big") + said
        cage.loop.call(lambda: cage._channel.feed(frame + frame))
        with pytest.raises(errors.SessionEnded):
            process.wait(30)


def test_who_fills_the_disk_ends_with_its_cage(tmp_path: Path) -> None:
    with Sandbox(tmp_path, limits=Limits(disk_mb=5)) as sandbox:
        process = sandbox.spawn("for i in 1 2 3 4 5 6; do head -c 4000000 /dev/zero >$i; done; sleep 1000")
        with pytest.raises(errors.SessionEnded, match="disk"):
            process.wait(60)


HOST = """
import sys, time
from warmcell import Sandbox, PtySize
sandbox = Sandbox()
processes = [sandbox.spawn("sleep 4321 & (setsid sleep 4322 &); sleep 4323", pty=size) for size in (None, PtySize(80, 24))]
print(sandbox._async._driver.live._cage.pid, sandbox.work_dir, flush=True)
time.sleep(1000)
"""


def test_killing_the_host_program_leaves_nothing() -> None:
    host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True)
    try:
        assert host.stdout is not None
        pid, work = host.stdout.readline().split()
        until(lambda: len(_sleepers()) >= 2)
        host.send_signal(signal.SIGKILL)
        host.wait(30)
        until(lambda: not os.path.exists(f"/proc/{pid}") and not _sleepers())
        # The next program of the same user removes what was left of the files.
        subprocess.run([sys.executable, "-c", "from warmcell import Sandbox; Sandbox().destroy()"], check=True)
        assert not os.path.exists(work)
    finally:
        host.kill()
        host.wait()
        host.stdout.close()  # type: ignore[union-attr]


def _sleepers() -> list[str]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline") as file:
                words = file.read().split("\0")
        except OSError:
            continue
        if words[:1] == ["sleep"] and words[1].startswith("432"):
            found.append(name)
    return found


def test_many_rounds_of_spawn_and_kill_leave_nothing() -> None:
    """The short form; `scripts/spawn-and-kill` goes a thousand rounds."""
    from tests.live.rounds import spawn_and_kill

    facts = spawn_and_kill(60)
    assert facts == {"processes": 0, "descriptors": 0, "threads": 0}, json.dumps(facts)
