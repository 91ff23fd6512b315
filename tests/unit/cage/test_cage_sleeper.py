"""The sleeping init, run outside any cage: it waits, it exits, and it cannot be read."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.helpers import eventually, fork_child

from warmcell.cage.linux import sleeper
from warmcell.cage.linux.call_list import CallList, Value
from warmcell.cage.linux.syscalls import MACHINE


class Asleep(NamedTuple):
    """Its pid, the other end of its lifeline, and that of a pipe which it inherited as an open descriptor."""

    pid: int
    lifeline: socket.socket
    inherited: int


@pytest.fixture
def asleep(tmp_path: Path) -> Iterator[Asleep]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inherited, held = os.pipe()
    os.set_inheritable(held, True)
    program = sleeper.make(str(tmp_path))
    calls = CallList(3)
    sleeper.become(calls, *(Value(place) for place in range(3)))
    awake, falls_asleep = os.pipe()
    pid = fork_child(lambda: calls.prepare([program, theirs.fileno(), falls_asleep]).run())
    os.close(falls_asleep)
    assert os.read(awake, 1) == b""  # shielded, it has closed its end
    os.close(awake)
    theirs.close()
    os.close(program)
    os.close(held)
    assert eventually(lambda: Path(f"/proc/{pid}/cmdline").read_bytes() == b"init\0")
    yield Asleep(pid, ours, inherited)
    ours.close()
    os.close(inherited)
    with suppress(ProcessLookupError, ChildProcessError):  # most of these tests have ended it
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_it_exits_when_its_lifeline_is_closed(asleep: Asleep) -> None:
    assert os.waitpid(asleep.pid, os.WNOHANG) == (0, 0)
    asleep.lifeline.close()
    assert os.waitpid(asleep.pid, 0) == (asleep.pid, 0)


def test_it_exits_when_its_lifeline_is_written_to(asleep: Asleep) -> None:
    asleep.lifeline.send(b"anything at all")
    assert os.waitpid(asleep.pid, 0) == (asleep.pid, 0)


def test_it_keeps_one_descriptor_and_next_to_no_memory(asleep: Asleep) -> None:
    """Only root can list the descriptors of an undumpable process; that it closed one shows on the pipe."""
    assert os.read(asleep.inherited, 1) == b""
    if os.geteuid() == 0:
        assert os.listdir(f"/proc/{asleep.pid}/fd") == ["0"]
    resident = int(Path(f"/proc/{asleep.pid}/statm").read_text().split()[1])
    assert resident * os.sysconf("SC_PAGE_SIZE") <= 64 << 10


def test_the_same_user_cannot_read_it(asleep: Asleep) -> None:
    assert os.stat(f"/proc/{asleep.pid}/environ").st_uid == 0
    if os.geteuid():
        for name in ("mem", "environ", "maps"):
            with pytest.raises(PermissionError):
                os.open(f"/proc/{asleep.pid}/{name}", os.O_RDONLY)
        with pytest.raises(PermissionError):
            os.readlink(f"/proc/{asleep.pid}/exe")


def test_both_machines_have_a_well_formed_program() -> None:
    for machine, number in (("x86_64", 62), ("aarch64", 183)):
        program = sleeper.program(machine)
        assert program[:7] == b"\x7fELF\x02\x01\x01"
        assert int.from_bytes(program[18:20], "little") == number
        entry = int.from_bytes(program[24:32], "little") - 0x400000
        assert 0 < entry < len(program) < 4096
    assert MACHINE in ("x86_64", "aarch64")
