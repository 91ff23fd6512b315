"""Pure module: many paths as one tree, in which what they have in common is there once.

Adding a path costs its own length, and the directories that it implies are counted like those that are named: two
hundred short archive members can imply four hundred thousand of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from warmcell.workspace.names import Parts

T = TypeVar("T")


class Node(Generic[T]):
    """One name. `content` is what was put at its path, or None."""

    __slots__ = ("children", "content")

    def __init__(self) -> None:
        self.children: dict[str, Node[T]] = {}
        self.content: T | None = None


class NameTree(Generic[T]):
    """Paths and what is at them. `size` is the number of names, implied ones included."""

    def __init__(self) -> None:
        self._top: Node[T] = Node()
        self.size = 0

    def path_to(self, parts: Parts) -> Iterator[Node[T]]:
        """The nodes on the way to a path, the last one included; those that are missing are made."""
        node = self._top
        for name in parts:
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = Node()
                self.size += 1
            yield child
            node = child

    def known_on_way(self, parts: Parts) -> Iterator[T]:
        """What was put at the beginnings of a path, or at the path itself."""
        node: Node[T] | None = self._top
        for name in parts:
            node = node.children.get(name) if node is not None else None
            if node is not None and node.content is not None:
                yield node.content

    def in_order(self) -> Iterator[T]:
        """Everything that was put in, parents first, each branch to its end before the next begins."""
        waiting = [self._top]
        while waiting:
            node = waiting.pop()
            if node.content is not None:
                yield node.content
            waiting.extend(reversed(node.children.values()))
