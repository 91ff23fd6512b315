"""Small parts of the standard library without the modules around them.

Importing `contextlib` takes two milliseconds of every command, for three lines.
"""

from __future__ import annotations


class suppress:  # noqa: N801  # as `contextlib` calls it, so that readers know it
    """`contextlib.suppress`."""

    __slots__ = ("_kinds",)

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        return kind is not None and issubclass(kind, self._kinds)
