"""A trie of paths. Pure.

Implied directories are counted like named ones: two hundred short archive members can imply four hundred thousand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from warmcell.workspace.names import Parts

T = TypeVar("T")


class Node(Generic[T]):
    """One name. `content` is the value at its path, or None."""

    __slots__ = ("children", "content")

    def __init__(self) -> None:
        self.children: dict[str, Node[T]] = {}
        self.content: T | None = None


class NameTree(Generic[T]):
    """Maps paths to values. `size` is the number of names, including implied ones."""

    def __init__(self) -> None:
        self._top: Node[T] = Node()
        self.size = 0

    def path_to(self, parts: Parts) -> Iterator[Node[T]]:
        """The nodes along a path, including the last. Missing ones are created."""
        node = self._top
        for name in parts:
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = Node()
                self.size += 1
            yield child
            node = child

    def contents_along(self, parts: Parts) -> Iterator[T]:
        """The values at a path and its ancestors."""
        node: Node[T] | None = self._top
        for name in parts:
            node = node.children.get(name) if node is not None else None
            if node is not None and node.content is not None:
                yield node.content

    def in_order(self) -> Iterator[T]:
        """All values, depth first, parents before children."""
        waiting = [self._top]
        while waiting:
            node = waiting.pop()
            if node.content is not None:
                yield node.content
            waiting.extend(reversed(node.children.values()))
