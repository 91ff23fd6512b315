"""Kills of programs whose output is not read: only the program ends, and its last output is delivered."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import sys
import termios
import threading
from collections.abc import Iterator

import pytest
from tests.helpers import eventually, until_async

from warmcell import AsyncSandbox, Process, PtySize, Sandbox, errors

pytestmark = pytest.mark.needs("linux", "user namespaces")

TERMINAL = PtySize(80, 24)
#: Endless output in numbered lines, so that a gap in it would show.
COUNT = "seq 1 100000000"
#: A program without the mark of its process and out of its tree: a kill does not find it, and it holds the terminal.
ESCAPED = ["python3", "-c", """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: os.execve("/bin/sh", ["sh", "-c", sys.argv[1]], {"PATH": "/usr/bin:/bin"})
    os._exit(0)
os.wait()
print("started", flush=True)
while True: print("more" * 1000)
"""]  # fmt: skip


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        neighbour = sandbox.spawn(["cat"])
        session = sandbox.session()
        session.run("kept = 5")
        yield sandbox
        neighbour.write("still here\n")
        neighbour.close_stdin()
        assert neighbour.wait(30).stdout == "still here\n"
        assert session.run("kept").value == "5"


def stuck(process: Process) -> Iterator[bytes]:
    """The output of a process, followed until its follower is full, all pipes are full, and it stands still."""
    events = process.output()
    pieces = [next(events).data]
    seen: list[int] = []

    def stands_still() -> bool:
        seen.append(process._async.local.totals()["stdout"])
        return len(seen) > 20 and seen[-1] == seen[-20] and seen[-1] > 1 << 20

    assert eventually(stands_still)
    return (piece for source in (pieces, (event.data for event in events)) for piece in source)


def is_unbroken(output: bytes) -> bool:
    """Whether its lines, without those that are cut at its ends, are numbers one after the other."""
    numbers = [int(line) for line in output.replace(b"\r", b"").split(b"\n")[1:-1]]
    return bool(numbers) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.parametrize("script", [COUNT, f"{COUNT} & sleep 1000"], ids=["itself", "in the background"])
@pytest.mark.parametrize("pty", [TERMINAL, None], ids=["terminal", "pipes"])
def test_a_kill_ends_that_process_alone(sandbox: Sandbox, script: str, pty: PtySize | None) -> None:
    process = sandbox.spawn(script, pty=pty)
    output = stuck(process)
    process.kill()
    assert_killed(process, output)


def test_the_signal_ends_that_process_alone(sandbox: Sandbox) -> None:
    process = sandbox.spawn(COUNT, pty=TERMINAL)
    output = stuck(process)
    process.signal(signal.SIGKILL)
    assert_killed(process, output)


def assert_killed(process: Process, output: Iterator[bytes]) -> None:
    result = process.wait(30)
    assert (result.exit_code, result.signal) == (137, signal.SIGKILL)
    received = b"".join(output)
    assert len(received) > 1 << 20
    assert is_unbroken(received)
    assert received.endswith(result.stdout_bytes)  # of which the latest is kept


def test_an_exit_is_seen_although_its_output_is_not_read(sandbox: Sandbox) -> None:
    """The agent has more of a terminal's output than the pipe takes."""
    process = sandbox.spawn(f"{COUNT} & until [ -e end ]; do sleep 0.1; done", pty=TERMINAL)
    output = stuck(process)
    sandbox.write_file("end", "")  # only now: on a busy host the pipes take long to fill
    assert process.wait(30).exit_code == 0
    assert is_unbroken(b"".join(output))


def test_a_timeout_ends_that_process_alone(sandbox: Sandbox) -> None:
    process = sandbox.spawn(COUNT, pty=TERMINAL, timeout=600)
    output = stuck(process)
    live = process._async.local._process
    live._loop.call(lambda: live._run_out(600))  # as its timer does: on a busy host the pipes take long to fill
    with pytest.raises(errors.ExecutionTimeout):
        process.wait(60)
    assert is_unbroken(b"".join(output))


@pytest.mark.parametrize("noise", ["sleep 30", "exec yes"], ids=["silent", "printing"])
@pytest.mark.parametrize("pty", [TERMINAL, None], ids=["terminal", "pipes"])
def test_an_escaped_grandchild_that_holds_the_output(sandbox: Sandbox, pty: PtySize | None, noise: str) -> None:
    process = sandbox.spawn([*ESCAPED, noise], pty=pty)
    output = stuck(process)
    process.write("typed\n" * 100)
    process.kill()
    assert process.wait(30).exit_code == 137
    assert len(b"".join(output)) > 1 << 20


def test_many_terminals_that_are_resized_meanwhile(sandbox: Sandbox) -> None:
    processes = [sandbox.spawn(COUNT, pty=TERMINAL) for _ in range(8)]
    outputs = [stuck(process) for process in processes]
    is_over = threading.Event()

    def resize() -> None:
        while not is_over.is_set():
            for process in processes:
                process.resize(100, 30)

    resizing = threading.Thread(target=resize)
    resizing.start()
    try:
        for process in processes:
            process.kill()
    finally:
        is_over.set()
        resizing.join()
    assert [process.wait(30).exit_code for process in processes] == [137] * 8
    assert all(is_unbroken(b"".join(output)) for output in outputs)


async def test_what_nothing_follows_yet_stays_in_the_pipes_and_is_killed_alone() -> None:
    async with AsyncSandbox() as sandbox:
        neighbour = await sandbox.spawn(["cat"])
        process = await sandbox._start_process(COUNT, is_followed=True, pty=TERMINAL)
        pipe = process.local._process.outputs[0]._descriptor
        await until_async(lambda: int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder) > 1000)
        await asyncio.sleep(0.5)  # until all pipes are full
        await process.kill()
        result = await process.wait()
        assert result.exit_code == 137
        assert result.stdout.startswith("1\r\n2\r\n")
        assert is_unbroken(result.stdout_bytes)
        assert neighbour.is_running
