"""Our machine code, read from files, and executables made of it.

machine_code/*.bin are assembled from the .S files beside them by scripts/assemble-machine-code; a test assembles them
again and compares.
"""

from __future__ import annotations

import os
import struct

from ..fast_imports import lru_cache
from ..records import NamedTuple
from .syscall_numbers import MACHINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

LOAD_ADDRESS = 0x400000
READ, WRITE, EXECUTE = 4, 2, 1

_DIRECTORY = f"{os.path.dirname(os.path.abspath(__file__))}/machine_code"
_MACHINES = {"x86_64": 62, "aarch64": 183}  # as ELF headers number them
_EXECUTABLE_FILE, _VERSION = 2, 1
_HEADER, _PROGRAM_HEADER = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")
_PT_LOAD, _PT_GNU_STACK = 1, 0x6474E551
_PAGE = 4096


@lru_cache(maxsize=8)
def read_code(name: str, machine: str = MACHINE) -> bytes:
    """The code of that name; empty where there is none for the machine. Read once: the file may be replaced."""
    try:
        descriptor = os.open(f"{_DIRECTORY}/{name}-{machine}.bin", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):  # the second in a zip archive
        return b""
    try:
        return os.read(descriptor, _PAGE)
    finally:
        os.close(descriptor)


class Segment(NamedTuple):
    """A part of an executable file and where the kernel maps it."""

    flags: int
    offset: int
    address: int
    size: int


def headers_size(segments: int) -> int:
    return _HEADER.size + (segments + 1) * _PROGRAM_HEADER.size


def elf_headers(entry: int, segments: Sequence[Segment], machine: str = MACHINE) -> bytes:
    """What a static executable begins with. Its stack cannot be executed. Pure."""
    kind = (_EXECUTABLE_FILE, _MACHINES[machine], _VERSION, entry, _HEADER.size, 0, 0)
    sizes = (_HEADER.size, _PROGRAM_HEADER.size, len(segments) + 1, 0, 0, 0)
    headers = [_HEADER.pack(b"\x7fELF\x02\x01\x01", *kind, *sizes)]
    for flags, offset, address, size in segments:
        headers.append(_PROGRAM_HEADER.pack(_PT_LOAD, flags, offset, address, address, size, size, _PAGE))
    return b"".join([*headers, _PROGRAM_HEADER.pack(_PT_GNU_STACK, READ | WRITE, 0, 0, 0, 0, 0, 16)])
