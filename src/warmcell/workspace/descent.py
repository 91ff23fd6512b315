"""Descent: directories beneath a root, reached one name at a time.

The last ones stay open, so that a path costs only what is new in it. Walking a tree in order is then linear in its
entries, however deep they lie; opening each by its whole path would multiply the two, and a guest chooses both.
"""

from __future__ import annotations

import os

from warmcell.workspace.names import Parts
from warmcell.workspace.root import OPEN_DIRECTORY, Root, checked, explanation, open_one

#: More would let a deep tree use up the host program's descriptors. Who goes up further than that is set down half as
#: far above by one call, and walks down from there, so that the next steps up find their directories open again.
_KEPT_OPEN = 64


class Descent:
    """Where an operation on a whole tree stands. With `makes`, directories that are missing are made.

    `made` has, for each call that made any, the path and the depth of the first one. Use it as a context manager.
    """

    def __init__(self, root: Root, *, makes: bool = False) -> None:
        self._root = root
        self._makes = makes
        self._path: list[str] = []
        self._fds: list[int] = []
        self.made: list[tuple[Parts, int]] = []

    def enter(self, parts: Parts) -> int:
        """The descriptor of a directory; it is open until the next call."""
        common = _common(self._path, checked(parts))
        self._climb(common)
        if common and not self._fds:
            self._return_to(parts[: max(0, common - _KEPT_OPEN // 2)])
        for depth in range(len(self._path), len(parts)):
            self._step(parts, depth)
        return self._fds[-1] if self._fds else self._root.fd

    def close(self) -> None:
        self._climb(0)

    def __enter__(self) -> Descent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _climb(self, depth: int) -> None:
        while len(self._path) > depth:
            self._path.pop()
            if self._fds:
                os.close(self._fds.pop())

    def _return_to(self, parts: Parts) -> None:
        self._path.clear()
        if parts:
            self._fds.append(self._root.open_directory(parts))
            self._path += parts

    def _step(self, parts: Parts, depth: int) -> None:
        here, name = self._fds[-1] if self._fds else self._root.fd, parts[depth]
        try:
            child = self._open(here, name, parts, depth)
        except OSError as error:
            raise explanation(error, parts[: depth + 1]) from None
        self._path.append(name)
        self._fds.append(child)
        if len(self._fds) > _KEPT_OPEN:
            os.close(self._fds.pop(0))

    def _open(self, here: int, name: str, parts: Parts, depth: int) -> int:
        try:
            return open_one(here, name, OPEN_DIRECTORY)
        except FileNotFoundError:
            if not self._makes:
                raise
        self._root.make_one(here, name, parts[: depth + 1])
        if not self.made or self.made[-1][0] != parts:
            self.made.append((parts, depth))
        return open_one(here, name, OPEN_DIRECTORY)


def _common(path: list[str], parts: Parts) -> int:
    """How many names two paths begin with alike."""
    for depth, (ours, theirs) in enumerate(zip(path, parts, strict=False)):
        if ours != theirs:
            return depth
    return min(len(path), len(parts))
