"""Memory at an address of our choosing: what refers to itself by address can be loaded there by another process."""

from __future__ import annotations

import mmap

from . import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


#: Where neither programs nor libraries, heaps or stacks are.
_FIRST, _PLACES, _SIZE = 0x10_0000_0000, 64, 1 << 20
_FIXED_NOREPLACE = 0x100000
_ALIGNED = 16

_libc = foreign.CDLL(None, use_errno=True)
_libc.mmap.restype = foreign.c_void_p
_libc.mmap.argtypes = [foreign.c_void_p, foreign.c_size_t, *[foreign.c_int] * 3, foreign.c_long]
_libc.munmap.argtypes = [foreign.c_void_p, foreign.c_size_t]


class Arena:
    """Buffers one after the other, from `base` on. Whoever made it closes it, when nobody uses its buffers any more."""

    def __init__(self, base: int) -> None:
        self.base = base
        self._used = 0

    def take(self, content: bytes) -> Optional["foreign.Array[foreign.c_char]"]:
        """A copy of the content, with a zero after it; None: there is no room left."""
        start = (self._used + _ALIGNED - 1) // _ALIGNED * _ALIGNED
        if start + len(content) + 1 > _SIZE:
            return None
        self._used = start + len(content) + 1
        buffer = (foreign.c_char * (len(content) + 1)).from_address(self.base + start)
        buffer.raw = content + b"\0"
        return buffer

    def content(self) -> bytes:
        return foreign.read_memory(self.base, self._used)

    def close(self) -> None:
        _libc.munmap(self.base, _SIZE)


def reserve() -> Optional[Arena]:
    """None where there is no place for one."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED_NOREPLACE
    for place in range(_PLACES):
        base = _FIRST + place * _SIZE
        found = _libc.mmap(base, _SIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if found == base:
            return Arena(base)
        if found not in (None, foreign.c_void_p(-1).value):  # a kernel that takes it for a wish
            _libc.munmap(found, _SIZE)
    return None
