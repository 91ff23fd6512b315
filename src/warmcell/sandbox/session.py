"""Session: an interpreter that keeps its state from one cell to the next. Checkpoint: its state at one moment."""

from __future__ import annotations

import typing
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self

from warmcell.backends.output_callbacks import OnText, refuse_coroutine
from warmcell.core.light import Closing
from warmcell.core.types import check_timeout
from warmcell.lifetime.portal import portal
from warmcell.sandbox.interface import NO_CALLBACKS, CheckpointDriver, SandboxDriver, SessionDriver
from warmcell.sandbox.request_checks import OnDisplay, OnInput, check_cell_callbacks, check_cell_code
from warmcell.sandbox.signatures import blocking, same_arguments
from warmcell.sessions.cell_results import CellResult


class AsyncSessionSandbox(Protocol):
    """The part of a sandbox that an `AsyncSession` uses."""

    @property
    def timeout(self) -> float: ...
    def _with_driver(self, driver: SandboxDriver) -> Self: ...


class SessionSandbox(Protocol):
    """The part of a sandbox that a `Session` uses."""

    def _wrap(self, sandbox: Any) -> Self: ...


if TYPE_CHECKING:
    from typing_extensions import TypeVar  # which has `default`: annotations need not say AsyncSession[...]

    A = TypeVar("A", bound=AsyncSessionSandbox, default=Any)
    S = TypeVar("S", bound=SessionSandbox, default=Any)
else:
    A, S = typing.TypeVar("A"), typing.TypeVar("S")


class _SessionDescription:
    """The properties of both forms of a session."""

    _driver: SessionDriver

    @property
    def id(self) -> str:
        """128 random bits in hexadecimal."""
        return self._driver.id

    @property
    def language(self) -> str:
        return self._driver.language

    @property
    def is_closed(self) -> bool:
        """Whether it was closed. One that only ended can be restarted."""
        return self._driver.is_closed


class AsyncSession(_SessionDescription, Generic[A]):
    """An interpreter that keeps its state from one cell to the next. Calls are served in turn, from any task."""

    def __init__(self, sandbox: A, driver: SessionDriver) -> None:
        #: The sandbox whose files it sees. A fork has its own.
        self.sandbox = sandbox
        self._driver = driver

    async def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_display: OnDisplay | None = None,
        on_input: OnInput | None = None,
    ) -> CellResult:
        """Runs one cell. What it raised is in the result; variables, imports and the directory stay.

        A cell past its timeout is interrupted (`ExecutionTimeout`, the state is kept); if it runs on for 5 s after
        that, it is killed (`SessionEnded`). Cancelling the task interrupts the cell. Callbacks get output as it
        arrives and may be coroutine functions; one that raises ends the cell. Without `on_input`, `input()` raises
        `EOFError`.
        """
        callbacks = check_cell_callbacks(on_stdout, on_stderr, on_display, on_input)
        return await self._driver.run(check_cell_code(code), self._seconds(timeout), callbacks)

    async def variables(self, *, timeout: float | None = None) -> dict[str, str]:
        """The variables that cells have defined, as short texts."""
        return await self._driver.variables(self._seconds(timeout))

    async def interrupt(self) -> bool:
        """Ends the running cell, or the first that waits, with a KeyboardInterrupt; if it ignores that for 5 s, it is
        killed. Returns whether there was one.
        """
        return await self._driver.interrupt()

    async def restart(self) -> None:
        """A new interpreter, without the variables. A running cell ends with `SessionEnded`."""
        await self._driver.restart()

    async def fork(self, reseed: bool = True) -> AsyncSession[A]:
        """A second session in a new sandbox (`.sandbox`), with these variables and files, and independent from now on.

        For Python in a `Sandbox(forkable=True)`. What cannot be copied is refused by name (`InvalidRequest`): other
        threads, running processes, sockets, generators. With `reseed`, the fork draws other random numbers.
        """
        sandbox, driver = await self._driver.fork(reseed)
        return AsyncSession(self.sandbox._with_driver(sandbox), driver)

    async def checkpoint(self) -> AsyncCheckpoint[A]:
        """The session as it is now; `checkpoint.session()` continues from there, as often as wanted.

        The same conditions as for `fork`. `close` frees it.
        """
        return AsyncCheckpoint(self.sandbox, await self._driver.checkpoint())

    async def close(self) -> None:
        """Ends the interpreter and everything that it started. May be called twice."""
        await self._driver.close()

    def _seconds(self, timeout: float | None) -> float:
        return self.sandbox.timeout if timeout is None else check_timeout(timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id[:8]} {self.language}>"


class SessionStart(Generic[A]):
    """The start of a session, as `AsyncSandbox.session` returns it: `await` it, or enter it with `async with`."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, AsyncSession[A]]]) -> None:
        self._start = start
        self._session: AsyncSession[A] | None = None

    def __await__(self) -> Generator[Any, Any, AsyncSession[A]]:
        return self._start().__await__()

    async def __aenter__(self) -> AsyncSession[A]:
        self._session = await self._start()
        return self._session

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()


async def _destroy(session: AsyncSession[Any]) -> None:
    """Ends a session with the sandbox that was made for it."""
    await session.sandbox.destroy()


class Session(_SessionDescription, Closing, Generic[S]):
    """`AsyncSession` for blocking code: the same methods and errors. Safe to use from several threads."""

    def __init__(self, session: AsyncSession, sandbox: S) -> None:
        #: The sandbox whose files it sees. A fork has its own.
        self.sandbox = sandbox
        self._async = session
        self._driver = session._driver

    @same_arguments(AsyncSession.run)
    def run(self, code: object, *, timeout: float | None = None, **callbacks: Any) -> CellResult:
        for name, callback in callbacks.items():
            refuse_coroutine(name, callback)
        names = ("on_stdout", "on_stderr", "on_display", "on_input")
        checked = check_cell_callbacks(*map(callbacks.get, names)) if callbacks else NO_CALLBACKS
        return self._driver.run_blocking(check_cell_code(code), self._async._seconds(timeout), checked)

    @same_arguments(AsyncSession.variables)
    def variables(self, *, timeout: float | None = None) -> dict[str, str]:
        return self._driver.variables_blocking(self._async._seconds(timeout))

    interrupt = blocking(AsyncSession.interrupt)
    restart = blocking(AsyncSession.restart)
    close = blocking(AsyncSession.close)

    def fork(self, reseed: bool = True) -> Session[S]:
        """A second session in a new sandbox (`.sandbox`), independent from now on; see `AsyncSession.fork`."""
        fork = portal.make(_destroy, self._async.fork, reseed)
        return Session(fork, self.sandbox._wrap(fork.sandbox))

    def checkpoint(self) -> Checkpoint[S]:
        """The session as it is now; see `AsyncSession.checkpoint`."""
        return Checkpoint(portal.make(AsyncCheckpoint.close, self._async.checkpoint), self.sandbox)

    def __repr__(self) -> str:
        return repr(self._async).replace("Async", "", 1)


class AsyncCheckpoint(Generic[A]):
    """Outlives the session and the sandbox that it was taken of. `close` it, or use it with `async with`."""

    def __init__(self, sandbox: A, driver: CheckpointDriver) -> None:
        self._sandbox, self._driver = sandbox, driver

    @property
    def is_closed(self) -> bool:
        return self._driver.is_closed

    async def session(self, reseed: bool = True) -> AsyncSession[A]:
        """A session in a new sandbox (`.sandbox`) with the variables and files of the checkpoint.

        Large buffers (numpy, pandas) are shared with the other sessions until they are written to. With `reseed`, it
        draws other random numbers than its siblings.
        """
        sandbox, driver = await self._driver.session(reseed)
        return AsyncSession(self._sandbox._with_driver(sandbox), driver)

    async def close(self) -> None:
        """Frees its memory and files. Sessions that were started from it go on. May be called twice."""
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Checkpoint(Closing, Generic[S]):
    """`AsyncCheckpoint` for blocking code: the same methods and errors."""

    def __init__(self, checkpoint: AsyncCheckpoint, sandbox: S) -> None:
        self._async, self._sandbox = checkpoint, sandbox

    @property
    def is_closed(self) -> bool:
        return self._async.is_closed

    def session(self, reseed: bool = True) -> Session[S]:
        """A session in a new sandbox (`.sandbox`); see `AsyncCheckpoint.session`."""
        made = portal.make(_destroy, self._async.session, reseed)
        return Session(made, self._sandbox._wrap(made.sandbox))

    close = blocking(AsyncCheckpoint.close)
