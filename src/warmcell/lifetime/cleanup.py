"""Cleanup: callbacks for the end of a run."""

from __future__ import annotations

from collections.abc import Callable


class Cleanup:
    """An `ExitStack` for plain calls, several times as fast.

    Calls run in reverse order, each once and even if another raises. For one thread at a time.
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
