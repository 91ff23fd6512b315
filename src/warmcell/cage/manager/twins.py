"""Twins of the zygote. Guests are copies of their zygote's memory, so path names that one caller chose go to a twin.

A twin is a fork of the zygote, which is far cheaper than another interpreter. It knows what the zygote knew at that
time, which is nothing of any caller, and then the names of one pool of the supervisor's.
"""

from __future__ import annotations

from .zygote_handle import ZygoteHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

#: More are made again when they are needed.
_MOST = 64


class Twins:
    """Owned by the cell maker. `is_for_one`: the zygote has a single guest, and needs no twin for its names."""

    def __init__(self, zygote: ZygoteHandle, is_for_one: bool = False) -> None:
        self._zygote = zygote
        self._is_for_one = is_for_one
        #: By the supervisor's number; the least recently used comes first.
        self._twins: Dict[int, ZygoteHandle] = {}

    def zygote_for(self, number: int) -> ZygoteHandle:
        """The twin of that number. The zygote itself for 0: cells without a caller's names."""
        if not number or self._is_for_one:
            return self._zygote
        twin = self._twins.pop(number, None) or self._zygote.fork_twin()
        self._twins[number] = twin
        if len(self._twins) > _MOST:
            self.end(next(iter(self._twins)))
        return twin

    def end(self, number: int) -> bool:
        """Whether there was one. Its guests go on."""
        twin = self._twins.pop(number, None)
        if twin is not None:
            twin.close()
        return twin is not None
