"""The sleeping init, run outside any cage: it waits, it ends, and it cannot be looked into."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from warmcell.cage.linux import sleeper
from warmcell.cage.linux.syscalls import MACHINE


@pytest.fixture
def asleep() -> Iterator[tuple[int, socket.socket]]:
    """Its pid and the other end of its lifeline."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = sleeper.make()
    pid = os.fork()
    if pid == 0:
        try:
            sleeper.become(program, theirs.fileno())
        finally:
            os._exit(1)
    theirs.close()
    os.close(program)
    deadline = time.monotonic() + 5
    while os.readlink(f"/proc/{pid}/exe").startswith("/memfd") is False and time.monotonic() < deadline:
        time.sleep(0.005)
    yield pid, ours
    ours.close()
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def test_it_ends_when_the_other_end_is_closed(asleep: tuple[int, socket.socket]) -> None:
    pid, lifeline = asleep
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    lifeline.close()
    assert os.waitpid(pid, 0) == (pid, 0)


def test_it_ends_when_it_is_spoken_to(asleep: tuple[int, socket.socket]) -> None:
    pid, lifeline = asleep
    lifeline.send(b"anything at all")
    assert os.waitpid(pid, 0) == (pid, 0)


@pytest.mark.root  # an undumpable process shows its descriptors to nobody else
def test_it_keeps_one_descriptor_and_next_to_no_memory(asleep: tuple[int, socket.socket]) -> None:
    pid, _ = asleep
    assert os.listdir(f"/proc/{pid}/fd") == ["0"]
    with open(f"/proc/{pid}/smaps_rollup") as file:
        sizes = dict(line.split(":", 1) for line in file.read().splitlines()[1:])
    assert int(sizes["Pss"].split()[0]) <= 64


def test_nobody_of_the_same_user_can_look_into_it(asleep: tuple[int, socket.socket]) -> None:
    pid, _ = asleep
    assert os.stat(f"/proc/{pid}/environ").st_uid == 0
    if os.geteuid():
        with pytest.raises(PermissionError):
            os.open(f"/proc/{pid}/mem", os.O_RDONLY)


def test_both_machines_have_a_well_formed_program() -> None:
    for machine, number in (("x86_64", 62), ("aarch64", 183)):
        program = sleeper.program(machine)
        assert program[:7] == b"\x7fELF\x02\x01\x01"
        assert int.from_bytes(program[18:20], "little") == number
        entry = int.from_bytes(program[24:32], "little") - 0x400000
        assert 0 < entry < len(program) < 4096
    assert MACHINE in ("x86_64", "aarch64")
