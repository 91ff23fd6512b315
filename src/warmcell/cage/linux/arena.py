"""Memory at a fixed address: content that refers to itself by address can be loaded there by another process."""

from __future__ import annotations

import mmap

from . import fast_ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    Buffer = fast_ctypes.Array[fast_ctypes.c_char]

#: Addresses that programs, libraries, heaps and stacks do not use.
_FIRST, _PLACES, _SIZE = 0x10_0000_0000, 64, 1 << 20
_FIXED_NOREPLACE = 0x100000
_ALIGNED = 16

_libc = fast_ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = fast_ctypes.c_void_p
_libc.mmap.argtypes = [fast_ctypes.c_void_p, fast_ctypes.c_size_t, *[fast_ctypes.c_int] * 3, fast_ctypes.c_long]
_libc.munmap.argtypes = [fast_ctypes.c_void_p, fast_ctypes.c_size_t]


class Arena:
    """Buffers, one after the other, from `base` on. Its owner closes it when its buffers are no longer used."""

    def __init__(self, base: int) -> None:
        self.base = base
        self._used = 0

    def take(self, content: bytes) -> Optional[Buffer]:
        """A copy of the content, with a zero after it; None if it does not fit."""
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


def reserve() -> Optional[Arena]:
    """None where no address is free."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED_NOREPLACE
    for place in range(_PLACES):
        base = _FIRST + place * _SIZE
        found = _libc.mmap(base, _SIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if found == base:
            return Arena(base)
        if found not in (None, fast_ctypes.c_void_p(-1).value):  # an old kernel that takes the address for a hint
            _libc.munmap(found, _SIZE)
    return None
