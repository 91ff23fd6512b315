"""The paths of watched directories, by watch and in order. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from warmcell.workspace.names import Parts


class WatchedDirectories:
    """Finds what is below a directory without looking at all others: a guest renames directories all the time."""

    def __init__(self) -> None:
        self._paths: dict[int, Parts] = {}
        #: A directory and everything below it are neighbours.
        self._sorted: list[tuple[Parts, int]] = []

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[int]:
        return iter(self._paths)

    def get(self, watch: int) -> Parts | None:
        return self._paths.get(watch)

    def place(self, watch: int, parts: Parts) -> None:
        """Note the path of a new watch, or the new path of a known one."""
        if self._paths.get(watch) != parts:
            self.forget(watch)
            self._paths[watch] = parts
            insort(self._sorted, (parts, watch))

    def forget(self, watch: int) -> None:
        parts = self._paths.pop(watch, None)
        if parts is not None:
            del self._sorted[bisect_left(self._sorted, (parts, watch))]

    def has(self, parts: Parts) -> bool:
        at = bisect_left(self._sorted, (parts, 0))
        return at < len(self._sorted) and self._sorted[at][0] == parts

    def first_below(self, parts: Parts) -> int | None:
        """The first watch of a directory or of those below it."""
        at = bisect_left(self._sorted, (parts, 0))
        is_below = at < len(self._sorted) and self._sorted[at][0][: len(parts)] == parts
        return self._sorted[at][1] if is_below else None
