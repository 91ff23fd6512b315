"""What a program wrote, as much of it as is kept: a ring for who looks later, or the beginning for who wants a result.

Pure module.
"""

from __future__ import annotations


class Ring:
    """The last `size` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept = bytearray()
        #: How much there ever was.
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        self._kept += data
        if len(self._kept) > 2 * self._size:  # seldom: moving what is kept costs as much as it holds
            del self._kept[: -self._size]

    @property
    def kept(self) -> bytes:
        return bytes(self._kept[-self._size :])

    @property
    def is_truncated(self) -> bool:
        return self.total > self._size


class Beginning(Ring):
    """The first `size` bytes, as results of runs have them."""

    def add(self, data: bytes) -> None:
        self.total += len(data)
        self._kept += data[: max(0, self._size - len(self._kept))]

    @property
    def kept(self) -> bytes:
        return bytes(self._kept)
