"""A list of system calls as a program of its own, for guests that will become a program.

Nothing of the interpreter is needed for that: not between a fork and the job, and not for the job, which is a list as
well (`program_job`). So the guest's process is not a copy of the zygote. It is a file of some ten pages, made once for
each recipe, that is loaded where the recipe's buffers are in the zygote, so that every address in it holds.
"""

from __future__ import annotations

import os
import struct

from ..failure import CageError
from ..light import write_json
from ..program_job import PLACE
from ..records import NamedTuple
from . import call_list
from .call_list import CallList, Prepared
from .syscalls import MACHINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Sequence

    from .call_list import Part

#: machine: (its number in executable files, the bytes that machine_code/list_program_<machine>.S assembles to)
MACHINE_CODE = {
    "x86_64": (
        62,
        "488b1c25f80f4000488b7b08488b7310488b5318488b4b20ff13483b43100f85a0000000488b7b28e82f010000488b7b"
        "30e8260100004c8d635841bd28000000e8e9000000488b7b50488b7358ba0300000041ba3200000049c7c0ffffffff45"
        "31c9b8090000000f054989c649c7c7ffffffff483b435075284c8b63504c8b6b60e8a8000000488b7b68488b7370488b"
        "537831c9ff13488b4b784c8b34c14989c74c897b584c897360488b7b28488d7358ba10000000b8010000000f05bf7e00"
        "0000eb63488b4b40488b0cc148f7d94881f900100000720231c9488d04404c8b63484d8d24c4498b74241089c8b90a00"
        "000031d2f7f180c23048ffce881685c075f0488b7b38498b3424498b54240841ba004000004531c04531c9b82c000000"
        "0f05bf01000000b8e70000000f05488b7b284c89e64c89ea41ba000100004531c04531c9b82d0000000f0531ff4883f8"
        "007ed44901c44929c575d3c3be02000000ba01000000b8480000000f05c3",
    ),
}

_LOAD_ADDRESS, _PAGE = 0x400000, 4096
_HEADERS = 64 + 3 * 56
_PT_LOAD, _PT_GNU_STACK = 1, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1
_F_SETFD = 2
_AT_EMPTY_PATH = 0x1000
_CLONE_VFORK, _CLONE_PARENT = 0x4000, 0x8000
_LOWEST_OWN = 64  # above what comes with an order, whose numbers are then the same every time
_BLOCK_WORDS = 16
_ERRNO = "    "


class Ends(NamedTuple):
    """The descriptors that the program itself uses."""

    job: int
    go: int
    handoff: int


def is_known() -> bool:
    """Whether there is machine code for this machine, and memory may be executed."""
    return MACHINE in MACHINE_CODE and call_list.can_spawn()


def image(calls: CallList, given: Sequence[int], ends: Ends) -> bytes:
    """The whole executable file. All that the list refers to must be in its arena."""
    assert calls.arena is not None
    number, *text = MACHINE_CODE[MACHINE]
    run, own = call_list.code(), bytes.fromhex("".join(str(line) for line in text))
    entry = _HEADERS + _aligned(len(run))
    data = _Data(calls.arena.base, calls.arena.content())
    block = _block(data, calls, given, ends)
    size = len(data.content)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(2, number, 1, _LOAD_ADDRESS + entry, 64, 0, 0, 64, 56, 3, 0, 0, 0),
    )
    code_place, data_place = (_LOAD_ADDRESS,) * 2, (calls.arena.base,) * 2
    header += struct.pack("<IIQQQQQQ", _PT_LOAD, _READ | _EXECUTE, 0, *code_place, _PAGE, _PAGE, _PAGE)
    header += struct.pack("<IIQQQQQQ", _PT_LOAD, _READ | _WRITE, _PAGE, *data_place, size, size, _PAGE)
    header += struct.pack("<IIQQQQQQ", _PT_GNU_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16)
    code = (header + run).ljust(entry, b"\0") + own
    return code.ljust(_PAGE - 8, b"\0") + struct.pack("=Q", block) + data.content


def _block(data: _Data, calls: CallList, given: Sequence[int], ends: Ends) -> int:
    """What the program finds by the last word of its first page; returns where that is."""
    steps = data.put(calls.steps())
    values = data.put(struct.pack(f"={len(given)}q", *given) + bytes(8 * len(calls)))
    failures = data.put(b"".join(_failure_rows(data, calls)))
    run = _LOAD_ADDRESS + _HEADERS
    words = (run, steps, len(calls), values, len(given), *ends, values + 8 * len(given), failures, PLACE)
    return data.put(struct.pack(f"={len(words)}q", *words).ljust(8 * _BLOCK_WORDS, b"\0"))


def _failure_rows(data: _Data, calls: CallList) -> List[bytes]:
    """For each step: what is said when it fails, with room for the errno."""
    rows: Dict[Part, bytes] = {}
    for part in calls.parts():
        if part not in rows:
            before = f'{{"failed":[{write_json(part.step)},{_ERRNO}'.encode()
            said = before + f",{write_json(part.what)}]}}".encode()
            place = data.put(said)
            rows[part] = struct.pack("=QQQ", place, len(said), place + len(before))
    return [rows[part] for part in calls.parts()]


class _Data:
    """Content that grows, and the addresses at which it will be found."""

    def __init__(self, base: int, content: bytes) -> None:
        self._base = base
        self.content = content

    def put(self, content: bytes) -> int:
        self.content = self.content.ljust(_aligned(len(self.content)), b"\0")
        place = self._base + len(self.content)
        self.content += content
        return place


def _aligned(size: int) -> int:
    return (size + 15) // 16 * 16


class ListProgram:
    """The file, and how a child becomes it. `start` is `fork` for who is to be the parent's child and our sibling."""

    def __init__(self, calls: CallList, given: Sequence[int], ends: Ends, kept: Sequence[int]) -> None:
        file = os.memfd_create("guest", os.MFD_CLOEXEC)
        try:
            content = memoryview(image(calls, given, ends))
            while content:
                content = content[os.write(file, content) :]
            self._file = _moved_up(file)
        finally:
            os.close(file)
        self._list = self._becoming(kept)

    def _becoming(self, kept: Sequence[int]) -> Prepared:
        calls = CallList()
        calls.part("fork guest")
        for descriptor in kept:
            calls.call("fcntl", descriptor, _F_SETFD, 0)
        arguments = calls.buffer(struct.pack("=QQ", calls.address(calls.buffer(b"guest")), 0))
        calls.call("execveat", self._file, b"", arguments, bytes(8), _AT_EMPTY_PATH)
        return calls.prepare(())

    def start(self) -> int:
        """The pid; OSError where this host does not let it be."""
        spawned = call_list.spawn(_CLONE_VFORK | _CLONE_PARENT, self._list, with_pidfd=False)
        # It has become the program or ended: nobody uses our memory but us.
        failure = self._list.failure()
        if failure is not None:
            raise NotBecome(failure.step, failure.errno, failure.what)
        return spawned.pid

    def close(self) -> None:
        os.close(self._file)


class NotBecome(CageError):
    """This host executes no such file."""


def _moved_up(file: int) -> int:
    import fcntl

    return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _LOWEST_OWN)
