"""Descent: opens directories beneath a root, one name at a time.

The last ones stay open, so that walking a tree in order is linear in its entries at any depth. Opening each by its
whole path would cost entries times depth, and a guest chooses both.
"""

from __future__ import annotations

import os

from warmcell.core.light import Closing
from warmcell.workspace.names import Parts
from warmcell.workspace.root import OPEN_DIRECTORY, Root, check_parts, open_one, to_workspace_error

#: Bounds the descriptors used for a deep tree. After climbing past the last open directory, one call reopens an
#: ancestor half as many levels up and walks down from there, so that the next steps up find open directories.
_KEPT_OPEN = 64


class Descent(Closing):
    """The position of an operation on a tree. With `create`, missing directories are created. A context manager.

    `created` has, for each call that created directories, the path and the depth of the first one.
    """

    def __init__(self, root: Root, *, create: bool = False) -> None:
        self._root = root
        self._create = create
        self._path: list[str] = []
        self._fds: list[int] = []
        self.created: list[tuple[Parts, int]] = []

    def enter(self, parts: Parts) -> int:
        """Open a directory. The descriptor is valid until the next call."""
        common = _common(self._path, check_parts(parts))
        self._climb(common)
        if common and not self._fds:
            self._return_to(parts[: max(0, common - _KEPT_OPEN // 2)])
        for depth in range(len(self._path), len(parts)):
            self._step(parts, depth)
        return self._fds[-1] if self._fds else self._root.fd

    def close(self) -> None:
        self._climb(0)

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
            raise to_workspace_error(error, parts[: depth + 1]) from None
        self._path.append(name)
        self._fds.append(child)
        if len(self._fds) > _KEPT_OPEN:
            os.close(self._fds.pop(0))

    def _open(self, here: int, name: str, parts: Parts, depth: int) -> int:
        try:
            return open_one(here, name, OPEN_DIRECTORY)
        except FileNotFoundError:
            if not self._create:
                raise
        self._root.make_one(here, name, parts[: depth + 1])
        if not self.created or self.created[-1][0] != parts:
            self.created.append((parts, depth))
        return open_one(here, name, OPEN_DIRECTORY)


def _common(path: list[str], parts: Parts) -> int:
    """The length of the common prefix of two paths."""
    for depth, (ours, theirs) in enumerate(zip(path, parts, strict=False)):
        if ours != theirs:
            return depth
    return min(len(path), len(parts))
