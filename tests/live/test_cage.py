"""The live cage itself: programs are started with descriptors of the host's, and their ends are told."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell import Limits, ProcessBackend, SandboxPolicy, errors
from warmcell.backends.process.live import LiveCage
from warmcell.backends.process.started_programs import CageEnd, StartedProgram
from warmcell.sessions.agent_channel import ChannelClosed

pytestmark = pytest.mark.needs("linux", "user namespaces")


@pytest.fixture(scope="module")
def backend() -> Iterator[ProcessBackend]:
    with ProcessBackend() as backend:
        yield backend


@pytest.fixture
def live(backend: ProcessBackend) -> Iterator[LiveCage]:
    cage = asyncio.run(backend.live_cage())
    yield cage
    cage.close()


def start(cage: LiveCage, *argv: str, **options: object) -> tuple[StartedProgram, int]:
    """A program whose output and complaints come to one pipe."""
    reader, writer = os.pipe()
    nothing = os.open("/dev/null", os.O_RDONLY)
    try:
        return cage.start(argv, descriptors=[nothing, writer, writer], **options), reader  # type: ignore[arg-type]
    finally:
        os.close(writer)
        os.close(nothing)


def output_of(reader: int) -> bytes:
    with open(reader, "rb") as file:
        return file.read()


def run(cage: LiveCage, *argv: str, **options: object) -> tuple[int, bytes]:
    program, reader = start(cage, *argv, **options)
    return os.waitstatus_to_exitcode(program.ended.result(30).status), output_of(reader)


def test_programs_share_one_cage(live: LiveCage) -> None:
    assert run(live, "sh", "-c", "echo kept >/tmp/note; exit 3") == (3, b"")
    assert run(live, "cat", "/tmp/note") == (0, b"kept\n")
    status, seen = run(live, "sh", "-c", "pwd; echo $A; id -un", cwd="/tmp", env={"A": "b"})
    assert (status, seen) == (0, b"/tmp\nb\nsandbox\n")


def test_a_cage_keeps_one_boot_id(live: LiveCage) -> None:
    """A client that compares two reads would take a change for a cold boot, as E2B's do after a pause."""
    read = ["cat", "/proc/sys/kernel/random/boot_id"]
    first, second = run(live, *read), run(live, *read)
    assert first == second and first[0] == 0


def test_the_pid_is_the_one_that_the_guest_sees(live: LiveCage) -> None:
    program, reader = start(live, "sh", "-c", "echo $$")
    assert int(output_of(reader)) == program.pid


def test_what_cannot_be_executed_ends_as_a_shell_would_have_it(live: LiveCage) -> None:
    program, reader = start(live, "no-such-program")
    assert program.failure == errno.ENOENT
    assert os.waitstatus_to_exitcode(program.ended.result(30).status) == 127
    assert output_of(reader) == b"no-such-program: command not found\n"
    assert run(live, "/etc/passwd")[0] == 126


def test_a_directory_that_is_not_there_is_the_callers_mistake(live: LiveCage) -> None:
    with pytest.raises(errors.InvalidRequest, match="no such directory"):
        start(live, "true", cwd="/nowhere")


def test_a_tree_is_killed_and_nothing_else(live: LiveCage) -> None:
    other, _ = start(live, "sleep", "1000")
    script = "sleep 1001 & (setsid sleep 1002 &) ; echo ready; sleep 1003"
    program, reader = start(live, "sh", "-c", script)
    assert os.read(reader, 6) == b"ready\n"
    program.kill_blocking()
    assert program.ended.result(30).status == signal.SIGKILL
    listed, deadline = b"sleep 1001 ", time.monotonic() + 30
    while any(f"sleep 100{number} ".encode() in listed for number in (1, 2, 3)):  # killed, and about to be gone
        assert time.monotonic() < deadline
        listed = run(live, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")[1]
    assert b"sleep 1000 " in listed
    assert not other.ended.done()
    os.close(reader)


def test_a_signal_goes_to_the_program(live: LiveCage) -> None:
    program, reader = start(
        live, "sh", "-c", "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    )
    assert os.read(reader, 6) == b"ready\n"
    program.signal_soon(signal.SIGTERM)
    assert os.waitstatus_to_exitcode(program.ended.result(30).status) == 7
    assert b"caught" in output_of(reader)


SERVER = """
import socket
with socket.create_server(("127.0.0.1", 8000)) as server:
    print("listening", flush=True)
    for _ in range(2):
        connection, _ = server.accept()
        text = b""
        while data := connection.recv(1 << 16):
            text += data
        connection.sendall(text.upper())
        connection.close()
"""


def test_a_port_inside_can_be_reached_and_half_closed(live: LiveCage) -> None:
    with pytest.raises(ConnectionRefusedError):
        live.connect(8000)
    program, reader = start(live, "python3", "-c", SERVER)
    assert os.read(reader, 100) == b"listening\n"
    for text in (b"hello", b"x" * 3_000_000):
        with live.connect(8000) as connection:
            connection.settimeout(30)
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            assert b"".join(iter(lambda c=connection: c.recv(1 << 16), b"")) == text.upper()
    assert program.ended.result(30).status == 0
    os.close(reader)


FULL = """
import socket, time
with socket.create_server(("127.0.0.1", 8000), backlog=0):
    print("listening", flush=True)
    time.sleep(1000)
"""


def test_a_program_that_accepts_no_connections_does_not_end_the_cage(
    live: LiveCage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmcell.backends.process.live._GRACE_SECONDS", 1.0)
    program, reader = start(live, "python3", "-c", FULL)
    assert os.read(reader, 100) == b"listening\n"
    with ExitStack() as queued, pytest.raises(ConnectionRefusedError, match="accepts no more"):
        for _ in range(10):
            queued.enter_context(live.connect(8000))
    monkeypatch.undo()
    assert run(live, "echo", "fine") == (0, b"fine\n")
    assert not program.ended.done()
    os.close(reader)


def test_the_death_of_an_agent_ends_its_own_cage_only(backend: ProcessBackend, live: LiveCage) -> None:
    other = asyncio.run(backend.live_cage())
    program = live.start(["sleep", "1000"], descriptors=[0, 2, 2])
    os.kill(live.pid, signal.SIGKILL)
    with pytest.raises(errors.SessionEnded, match="killed by signal 9"):
        program.ended.result(30)
    assert "signal 9" in live.ended.result(30).reason
    with pytest.raises(errors.SessionEnded):
        start(live, "true")
    assert run(other, "echo", "fine") == (0, b"fine\n")
    other.close()


def test_closing_ends_everything_at_once(backend: ProcessBackend) -> None:
    cage = asyncio.run(backend.live_cage())
    pid = cage.pid
    program, reader = start(cage, "sleep", "1000")
    cage.close()
    with pytest.raises(errors.SessionEnded, match="closed"):
        program.ended.result(0)
    assert output_of(reader) == b""
    assert not os.path.exists(f"/proc/{pid}")
    cage.close()


def test_memory_is_one_limit_for_all_programs(backend: ProcessBackend) -> None:
    cage = asyncio.run(backend.live_cage(Limits(memory_mb=100)))
    hold = "import time; held = b'x' * 40_000_000; print(1, flush=True); time.sleep(1000)"
    programs = [start(cage, "python3", "-c", hold) for _ in range(4)]
    deadline = time.monotonic() + 60
    while not any(program.ended.done() for program, _ in programs):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    cage.close()
    for _, reader in programs:
        os.close(reader)


@pytest.mark.parametrize("enforcer", [None, "landlock"])
def test_other_classes_have_none_and_say_so(enforcer: str | None) -> None:
    with ProcessBackend(enforcer=enforcer) as backend, pytest.raises(errors.EnforcerUnavailable, match="live cages"):
        asyncio.run(backend.live_cage())


def test_a_policy_without_processes_has_none() -> None:
    with ProcessBackend(policy=SandboxPolicy()) as backend, pytest.raises(errors.PolicyViolation, match="live cage"):
        asyncio.run(backend.live_cage())


async def test_a_cage_that_ends_slowly_does_not_hold_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmcell.backends.process.live._GRACE_SECONDS", 0.01)
    monkeypatch.setattr("warmcell.backends.process.live._END_SECONDS", 5.0)
    closed, cage = Future[Any](), LiveCage.__new__(LiveCage)
    closed.set_exception(ChannelClosed())
    vars(cage).update(ended=Future(), _is_closing=False, _ask=lambda *_, **fields: closed)
    vars(cage)["loop"] = SimpleNamespace(is_own_thread=lambda: False)
    asking = asyncio.create_task(cage.request_async(1, "signal"))
    await asyncio.sleep(0.1)
    cage.ended.set_result(CageEnd("it is over"))
    with pytest.raises(errors.SessionEnded, match="it is over"):
        await asking
