"""Pages of programs and libraries that a waiting process does not need: they come back by themselves when it does."""

from __future__ import annotations

from . import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

_MADV_DONTNEED = 4

_madvise = foreign.CDLL(None).madvise
_madvise.argtypes = [foreign.c_void_p, foreign.c_size_t, foreign.c_int]


def of_files() -> List[Tuple[int, int]]:
    """Where this process has files mapped that it can only read, and has never changed: (address, length)."""
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
