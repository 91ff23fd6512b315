"""Cleanup: what goes with the end of a run."""

from __future__ import annotations

from collections.abc import Callable


class Cleanup:
    """An `ExitStack` that knows nothing but calls, for every run: the other one takes several times as long.

    The latest comes first, each whatever becomes of the others, and each once. For one thread at a time.
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []

    def callback(self, call: Callable[[], object]) -> None:
        self._calls.append(call)

    def close(self) -> None:
        try:
            while self._calls:
                self._calls.pop()()
        finally:
            if self._calls:
                self.close()

    def __enter__(self) -> Cleanup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
