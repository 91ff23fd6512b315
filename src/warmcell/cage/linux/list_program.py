"""A list of system calls as an executable, for guests that become a program.

Such a guest needs no interpreter: its job is a call list as well (`program_job`). So its process is not a copy of the
zygote but an executable of some ten pages, made once per recipe and loaded at the addresses of the recipe's buffers in
the zygote, so that every address in it is valid.
"""

from __future__ import annotations

import os
import struct

from ..failure import CageError
from ..fast_imports import write_json
from ..program_job import PLACE
from ..records import NamedTuple
from . import call_list
from .call_list import CallList, PreparedCalls
from .native_code import EXECUTE, LOAD_ADDRESS, READ, WRITE, Segment, elf_headers, headers_size, read_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Sequence

    from .call_list import ListStep

_PAGE = 4096
_HEADERS = headers_size(2)
_F_SETFD = 2
_AT_EMPTY_PATH = 0x1000
_CLONE_VFORK, _CLONE_PARENT = 0x4000, 0x8000
_LOWEST_OWN = 64  # above the descriptors of orders, so that their numbers rarely change
_BLOCK_WORDS = 16
_ERRNO = "    "


class Channels(NamedTuple):
    """The descriptors that the program itself uses."""

    job: int
    go: int
    handoff: int


def is_supported() -> bool:
    """Whether there is machine code for this architecture, and memory may be executed."""
    return bool(read_code("list_program")) and call_list.can_spawn()


def image(calls: CallList, given: Sequence[int], channels: Channels) -> bytes:
    """The content of the executable. All data of the list must be in its arena."""
    assert calls.arena is not None
    run = read_code("call_list")
    entry = _HEADERS + _align(len(run))
    data = _Data(calls.arena.base, calls.arena.content())
    block = _block(data, calls, given, channels)
    segments = [
        Segment(READ | EXECUTE, 0, LOAD_ADDRESS, _PAGE),
        Segment(READ | WRITE, _PAGE, calls.arena.base, len(data.content)),
    ]
    code = (elf_headers(LOAD_ADDRESS + entry, segments) + run).ljust(entry, b"\0") + read_code("list_program")
    return code.ljust(_PAGE - 8, b"\0") + struct.pack("=Q", block) + data.content


def _block(data: _Data, calls: CallList, given: Sequence[int], channels: Channels) -> int:
    """Write the block that the last word of the program's first page points to; returns its address."""
    steps = data.put(calls.encode())
    values = data.put(struct.pack(f"={len(given)}q", *given) + bytes(8 * len(calls)))
    failures = data.put(b"".join(_failure_rows(data, calls)))
    run = LOAD_ADDRESS + _HEADERS
    words = (run, steps, len(calls), values, len(given), *channels, values + 8 * len(given), failures, PLACE)
    return data.put(struct.pack(f"={len(words)}q", *words).ljust(8 * _BLOCK_WORDS, b"\0"))


def _failure_rows(data: _Data, calls: CallList) -> List[bytes]:
    """For each call: the message to send when it fails, with room for the errno."""
    rows: Dict[ListStep, bytes] = {}
    for step in calls.steps():
        if step not in rows:
            before = f'{{"failed":[{write_json(step.step)},{_ERRNO}'.encode()
            message = before + f",{write_json(step.what)}]}}".encode()
            place = data.put(message)
            rows[step] = struct.pack("=QQQ", place, len(message), place + len(before))
    return [rows[step] for step in calls.steps()]


class _Data:
    """The data segment; `put` appends to it and returns the address."""

    def __init__(self, base: int, content: bytes) -> None:
        self._base, self.content = base, content

    def put(self, content: bytes) -> int:
        self.content = self.content.ljust(_align(len(self.content)), b"\0")
        place = self._base + len(self.content)
        self.content += content
        return place


def _align(size: int) -> int:
    return (size + 15) // 16 * 16


class ListProgram:
    """The executable file, and the call list with which a child execs it. The child becomes our sibling."""

    def __init__(self, calls: CallList, given: Sequence[int], channels: Channels, kept: Sequence[int]) -> None:
        file = os.memfd_create("guest", os.MFD_CLOEXEC)
        try:
            content = memoryview(image(calls, given, channels))
            while content:
                content = content[os.write(file, content) :]
            self._file = _move_up(file)
        finally:
            os.close(file)
        self._list = self._prepare_exec(kept)

    def _prepare_exec(self, kept: Sequence[int]) -> PreparedCalls:
        calls = CallList()
        calls.begin_step("fork guest")
        for descriptor in kept:
            calls.call("fcntl", descriptor, _F_SETFD, 0)
        arguments = calls.buffer(struct.pack("=QQ", calls.address(calls.buffer(b"guest")), 0))
        calls.call("execveat", self._file, b"", arguments, bytes(8), _AT_EMPTY_PATH)
        return calls.prepare(())

    def start(self) -> int:
        """Start a guest and return its pid. Raises `ExecRefused` if this host does not execute memfds."""
        spawned = call_list.spawn(_CLONE_VFORK | _CLONE_PARENT, self._list, with_pidfd=False)
        # With CLONE_VFORK the child has exec'd or exited by now, and no longer shares our memory.
        failure = self._list.failure()
        if failure is not None:
            raise ExecRefused(failure.step, failure.errno, failure.what)
        return spawned.pid

    def close(self) -> None:
        os.close(self._file)


class ExecRefused(CageError):
    """This host does not execute a memfd."""


def _move_up(file: int) -> int:
    import fcntl

    return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _LOWEST_OWN)
