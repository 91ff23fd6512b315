"""Drops pages of programs and libraries from a waiting process; the kernel loads them again on use."""

from __future__ import annotations

from . import fast_ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

_MADV_DONTNEED = 4

_madvise = fast_ctypes.CDLL(None).madvise
_madvise.argtypes = [fast_ctypes.c_void_p, fast_ctypes.c_size_t, fast_ctypes.c_int]


def find_file_pages() -> List[Tuple[int, int]]:
    """Read-only file mappings of this process without changed pages: (address, length)."""
    found: List[Tuple[int, int]] = []
    place = (0, 0)
    with open("/proc/self/smaps") as file:
        for line in file:
            words = line.split()
            if "-" in words[0] and len(words) >= 5 and len(words[1]) == 4:
                start, end = (int(number, 16) for number in words[0].split("-"))
                is_kept = "w" in words[1] or words[4] == "0"
                place = (0, 0) if is_kept else (start, end - start)
            elif words[0] == "Anonymous:" and words[1] == "0" and place[1]:
                found.append(place)
    return found


def drop(places: List[Tuple[int, int]]) -> None:
    for address, length in places:
        _madvise(address, length, _MADV_DONTNEED)
