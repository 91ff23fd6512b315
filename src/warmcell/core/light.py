"""Small parts of the standard library without the modules around them.

Importing `contextlib` takes two milliseconds of every command, for three lines.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self


class Closing:
    """A context manager that is closed at the end of the block."""

    __slots__ = ()
    if TYPE_CHECKING:
        close: Callable[..., object]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class closing_fd:  # noqa: N801  # as `contextlib.closing`
    """Closes a descriptor at the end of the block: `with closing_fd(os.open(path, flags)) as fd:`."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class on_error:  # noqa: N801
    """Calls `undo` if the block raises: `with on_error(home.close): home.load()`. `async with` awaits it.

    Not on the path of each run: three more calls in Python take longer than `try` and `except`.
    """

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], Any]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self._undo()

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            await self._undo()


class suppress:  # noqa: N801  # as `contextlib` calls it, so that readers know it
    """`contextlib.suppress`."""

    __slots__ = ("_kinds",)

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        return kind is not None and issubclass(kind, self._kinds)


class Cleanup(Closing):
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


class LateLog:
    """`logging.getLogger(name)`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        import logging

        return getattr(logging.getLogger(self._name), name)
