"""Session and AsyncSession: an interpreter in a sandbox's live cage that remembers from one cell to the next."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from warmcell.backends.output_callbacks import OnText
from warmcell.core.errors import InvalidRequest, SandboxError, SessionEnded
from warmcell.core.types import ExecRequest, Language, check_timeout
from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.opening import Starter
from warmcell.sessions.cell_results import CellResult, DisplayData
from warmcell.sessions.exchange import NOBODY, Listeners, Worker
from warmcell.sessions.interpreter import Interpreter

if TYPE_CHECKING:
    from warmcell.sandbox.asynchronous import AsyncSandbox
    from warmcell.sandbox.lifted import LiftedSandbox

#: So short that none of the checks of a request can refuse it for its length.
_SHORT_CODE = 1 << 16
OnDisplay = Callable[[DisplayData], object]
OnInput = Callable[[str], object]


class AsyncSession:
    """Made by `AsyncSandbox.session`. Calls are served in turn; every method may be called from any task."""

    def __init__(
        self,
        sandbox: AsyncSandbox,
        language: str,
        env: Mapping[str, str],
        starter: Starter,
        worker: Worker,
        timeout: float,
        most_bytes: int,
        cells: int = 0,
    ) -> None:
        #: The one whose files it sees. A branch has its own.
        self.sandbox = sandbox
        self.language = language
        self._env = env
        self._starter = starter
        self._timeout = timeout
        self._interpreter = Interpreter(worker, most_bytes, cells)

    @property
    def is_closed(self) -> bool:
        """For good; what has only ended can be restarted."""
        return self._interpreter.is_closed

    @property
    def id(self) -> str:
        """128 random bits in hexadecimal."""
        return self._interpreter.id

    def when_closed(self, call: Callable[[], None]) -> None:
        """Once, when it is closed for good, by whoever closes it."""
        self._interpreter.on_closed = call

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

        A cell past its timeout is interrupted (`ExecutionTimeout`, the state is kept); one that goes on for 5 s after
        that is killed (`SessionEnded`). Cancelling the task interrupts the cell. Callbacks hear it as it comes, and may
        be coroutine functions; one that raises ends the cell. Without `on_input`, `input()` raises `EOFError`.
        """
        loop = asyncio.get_running_loop()
        listeners = _checked(on_stdout, on_stderr, on_display, on_input, lambda call: _on_loop(loop, call))
        return await self._interpreter.run(
            self._interpreter.cell(_checked_code(code), self._seconds(timeout), listeners)
        )

    async def variables(self, *, timeout: float | None = None) -> dict[str, str]:
        """What the cells have defined, as short texts."""
        return await self._interpreter.run(self._interpreter.look(self._seconds(timeout)))

    async def interrupt(self) -> None:
        """Ends the cell that is under way with a KeyboardInterrupt; what ignores that for 5 s is killed."""
        self._interpreter.interrupt()

    async def restart(self) -> None:
        """A new interpreter, without the variables. A cell that is under way ends with `SessionEnded`."""
        self._interpreter.check_open()
        await in_thread(lambda: self._interpreter.end_worker(SessionEnded("it was restarted")))
        await self._interpreter.run(self._interpreter.renewal(await self._starter()))

    async def fork(self, reseed: bool = True) -> AsyncSession:
        """A second session in a new sandbox (`.sandbox`), with these variables and files, and independent from now on.

        For Python in a `Sandbox(forkable=True)`. What cannot be had twice is refused by name (`InvalidRequest`): other
        threads, running processes, sockets, generators. With `reseed`, the branch draws other random numbers.
        """
        from warmcell.sandbox.session_fork import branch_of

        return await branch_of(self, reseed)

    async def close(self) -> None:
        """Ends the interpreter and all that it started. May be called twice."""
        await in_thread(self._interpreter.close)

    async def _end(self, error: SandboxError) -> None:
        await in_thread(lambda: self._interpreter.close(error))

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else check_timeout(timeout)

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id[:8]} {self.language}>"


class Session:
    """`AsyncSession` for blocking code: the same methods and errors. Safe to use from several threads.

    Cells are carried out in the thread that calls, without a detour: a round trip costs little more than a pipe's.
    """

    def __init__(self, session: AsyncSession, sandbox: LiftedSandbox) -> None:
        #: The one whose files it sees. A branch has its own.
        self.sandbox = sandbox
        self._async = session
        self._interpreter = session._interpreter
        self.language = session.language

    @property
    def id(self) -> str:
        """128 random bits in hexadecimal."""
        return self._async.id

    def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_display: OnDisplay | None = None,
        on_input: OnInput | None = None,
    ) -> CellResult:
        """Runs one cell; see `AsyncSession.run`. Callbacks are called by this thread."""
        listeners = _checked(on_stdout, on_stderr, on_display, on_input, _plain)
        cell = self._interpreter.cell(_checked_code(code), self._async._seconds(timeout), listeners)
        return self._interpreter.run_blocking(cell)

    def variables(self, *, timeout: float | None = None) -> dict[str, str]:
        """What the cells have defined, as short texts."""
        return self._interpreter.run_blocking(self._interpreter.look(self._async._seconds(timeout)))

    def interrupt(self) -> None:
        """For another thread than the one that runs a cell: ends it; see `AsyncSession.interrupt`."""
        self._interpreter.interrupt()

    def restart(self) -> None:
        """A new interpreter, without the variables."""
        portal.call(self._async.restart)

    def fork(self, reseed: bool = True) -> Self:
        """A second session in a new sandbox (`.sandbox`), independent from now on; see `AsyncSession.fork`."""
        branch = portal.call(self._async.fork, reseed)
        return type(self)(branch, self.sandbox._around(branch.sandbox))

    def close(self) -> None:
        """Ends the interpreter and all that it started. May be called twice."""
        self._interpreter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._async).replace("Async", "", 1)


def _checked_code(code: object) -> str:
    """As in any request."""
    if isinstance(code, str) and code.isascii() and "\0" not in code and len(code) < _SHORT_CODE and code.strip():
        return code
    request = ExecRequest(Language.PYTHON, code, 1.0)  # type: ignore[arg-type]
    assert isinstance(request.code, str)
    return request.code


def _checked(
    on_stdout: object, on_stderr: object, on_display: object, on_input: object, lift: Callable[[Any], Any]
) -> Listeners:
    if on_stdout is on_stderr is on_display is on_input is None:
        return NOBODY
    given = {"on_stdout": on_stdout, "on_stderr": on_stderr, "on_display": on_display, "on_input": on_input}
    for name, callback in given.items():
        if callback is not None and not callable(callback):
            raise InvalidRequest(f"must be callable, not {type(callback).__name__}", field=name)
        if inspect.iscoroutinefunction(callback) and lift is _plain:
            raise InvalidRequest("is a coroutine function", field=name, hint="use AsyncSandbox, or a plain function")
    return Listeners(**{name: None if callback is None else lift(callback) for name, callback in given.items()})


def _plain(callback: Any) -> Any:
    return callback


def _on_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[Any], object]) -> Callable[[Any], object]:
    """For the cell's thread: the callback is called by the event loop, and what it returns is awaited there."""

    async def visit(what: Any) -> object:
        answer = callback(what)
        return await answer if inspect.isawaitable(answer) else answer

    return lambda what: asyncio.run_coroutine_threadsafe(visit(what), loop).result()
