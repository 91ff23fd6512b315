"""Attacks on and from live cages, looked at from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warmcell import Limits, Sandbox, errors

pytestmark = pytest.mark.needs("linux", "user namespaces")


def until(condition: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


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
        one.spawn("read word; kill -9 2").write("now\n")
        until(lambda: not one._async._live._cage.is_alive)  # type: ignore[union-attr]
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
        b"\x00\x00\x00\x02{}",  # an event that there is none of
        b'\x00\x00\x00\x08{"id":99}',  # an answer that nobody asked for
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
        cage = sandbox._async._live._cage  # type: ignore[union-attr]
        assert cage is not None
        conversation = cage._conversation
        cage.loop.call(lambda: conversation.hear_bytes(words))
        with pytest.raises(errors.SessionEnded):
            process.wait(30)
        assert cage.ended.result(30).reason
        assert neighbour.is_running
        assert sandbox.spawn("echo new").wait(30).stdout == "new\n"


def test_a_guest_that_stops_the_agent_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmcell.backends.process.live._ANSWER_SECONDS", 1.0)
    with Sandbox() as sandbox:
        sandbox.spawn("read word; kill -STOP 2; sleep 1000").write("now\n")
        with pytest.raises(errors.SessionEnded, match="did not answer"):
            while True:
                sandbox.spawn("true")
        assert sandbox.spawn("echo new").wait(30).stdout == "new\n"


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
print(sandbox._async._live._cage.pid, sandbox.work_dir, flush=True)
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
