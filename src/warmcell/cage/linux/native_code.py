"""Reads our machine code from files, and makes executables of it.

machine_code/*.bin are assembled from the .S files beside them by scripts/assemble-machine-code; a test assembles them
again and compares.
"""

from __future__ import annotations

import mmap
import os
import struct

from ..fast_imports import lru_cache
from ..records import NamedTuple
from . import fast_ctypes
from .descriptors import closing_fd
from .syscall_numbers import MACHINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Sequence

    Buffer = fast_ctypes.Array[fast_ctypes.c_char]

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
    """The code of that name; empty if there is none for the architecture. Cached: the file may be replaced."""
    try:
        with closing_fd(os.open(f"{_DIRECTORY}/{name}-{machine}.bin", os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            return os.read(descriptor, _PAGE)
    except (FileNotFoundError, NotADirectoryError):  # the second in a zip archive
        return b""


class Segment(NamedTuple):
    """A part of an executable file and where the kernel maps it."""

    flags: int
    offset: int
    address: int
    size: int


def headers_size(segments: int) -> int:
    return _HEADER.size + (segments + 1) * _PROGRAM_HEADER.size


def elf_headers(entry: int, segments: Sequence[Segment], machine: str = MACHINE) -> bytes:
    """The headers of a static executable whose stack is not executable. Pure."""
    kind = (_EXECUTABLE_FILE, _MACHINES[machine], _VERSION, entry, _HEADER.size, 0, 0)
    sizes = (_HEADER.size, _PROGRAM_HEADER.size, len(segments) + 1, 0, 0, 0)
    headers = [_HEADER.pack(b"\x7fELF\x02\x01\x01", *kind, *sizes)]
    for flags, offset, address, size in segments:
        headers.append(_PROGRAM_HEADER.pack(_PT_LOAD, flags, offset, address, address, size, size, _PAGE))
    return b"".join([*headers, _PROGRAM_HEADER.pack(_PT_GNU_STACK, READ | WRITE, 0, 0, 0, 0, 0, 16)])


# Memory at a fixed address: another process can load content there that contains its own addresses.

#: Addresses that programs, libraries, heaps and stacks do not use.
_FIRST, _PLACES, _SIZE = 0x10_0000_0000, 64, 1 << 20
_FIXED_NOREPLACE = 0x100000
_ALIGNED = 16

_libc = fast_ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = fast_ctypes.c_void_p
_libc.mmap.argtypes = [fast_ctypes.c_void_p, fast_ctypes.c_size_t, *[fast_ctypes.c_int] * 3, fast_ctypes.c_long]
_libc.munmap.argtypes = [fast_ctypes.c_void_p, fast_ctypes.c_size_t]


class Arena:
    """Allocates consecutive buffers from `base` on. The owner closes it when its buffers are no longer used."""

    def __init__(self, base: int) -> None:
        self.base = base
        self._used = 0

    def take(self, content: bytes) -> Optional[Buffer]:
        """A NUL-terminated copy of the content; None if it does not fit."""
        start = (self._used + _ALIGNED - 1) // _ALIGNED * _ALIGNED
        if start + len(content) + 1 > _SIZE:
            return None
        self._used = start + len(content) + 1
        buffer = (fast_ctypes.c_char * (len(content) + 1)).from_address(self.base + start)
        buffer.raw = content + b"\0"
        return buffer

    def content(self) -> bytes:
        return fast_ctypes.read_memory(self.base, self._used)

    def close(self) -> None:
        _libc.munmap(self.base, _SIZE)


def reserve_arena() -> Optional[Arena]:
    """Map an arena; None if no address is free."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED_NOREPLACE
    for place in range(_PLACES):
        base = _FIRST + place * _SIZE
        found = _libc.mmap(base, _SIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if found == base:
            return Arena(base)
        if found not in (None, fast_ctypes.c_void_p(-1).value):  # old kernels take the address as a hint
            _libc.munmap(found, _SIZE)
    return None
