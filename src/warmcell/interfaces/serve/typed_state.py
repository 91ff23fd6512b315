"""State that a protocol keeps with a service or a sandbox: one object per class, typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")


class TypedState:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._objects: dict[type, object] = {}

    def find(self, kind: type[T]) -> T | None:
        return cast("T | None", self._objects.get(kind))

    def put(self, value: T) -> T:
        self._objects[type(value)] = value
        return value

    def get(self, kind: type[T], make: Callable[[], T]) -> T:
        """Return the object of this class, made by `make` the first time."""
        found = self.find(kind)
        return self.put(make()) if found is None else found
