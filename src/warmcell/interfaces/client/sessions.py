"""Sessions of a remote sandbox: `AsyncRemoteSession`, and `RemoteSession` for blocking code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from warmcell.backends.output_callbacks import OnText, refuse_coroutine
from warmcell.core.errors import InvalidRequest, SessionEnded
from warmcell.core.types import check_timeout
from warmcell.interfaces.client.wire import cell_outcome, record
from warmcell.lifetime.portal import Visits, portal
from warmcell.sandbox.session import OnDisplay, OnInput, Session
from warmcell.sessions.cell_results import CellResult, DisplayData

if TYPE_CHECKING:
    from warmcell.interfaces.client.blocking import RemoteSandbox
    from warmcell.interfaces.client.sandboxes import AsyncRemoteSandbox


class AsyncRemoteSession:
    """As `AsyncSession`, over there."""

    def __init__(self, sandbox: AsyncRemoteSandbox, made: Mapping[str, Any], timeout: float) -> None:
        #: The one whose files it sees. A branch has its own.
        self.sandbox = sandbox
        self.id: str = made["id"]
        self.language: str = made["language"]
        self.is_closed = False
        self._at, self._timeout = f"sessions/{self.id}", timeout

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
        """Runs one cell. Cancelling the task interrupts it; a callback that raises ends it."""
        self._check_open()
        calls = {"stdout": on_stdout, "stderr": on_stderr, "display": on_display, "input": on_input}
        for name, call in calls.items():
            if call is not None and not callable(call):
                raise InvalidRequest(f"must be callable, not {type(call).__name__}", field=f"on_{name}")
        seconds = self._timeout if timeout is None else check_timeout(timeout)
        asked = {"code": code, "timeout": timeout, "answers_input": on_input is not None}
        if not any(calls.values()):
            return cell_outcome(await self.sandbox.ask("POST", f"{self._at}/run", json=asked, seconds=seconds))
        result = CellResult()
        async with self.sandbox.events("POST", f"{self._at}/run", json=asked) as events:
            async for name, data, _ in events:
                if name == "result":
                    result = cell_outcome(data)
                else:
                    await self._tell(name, data, calls.get(name))
        return result

    async def _tell(self, name: str, data: dict[str, Any], call: Callable[[Any], object] | None) -> None:
        if call is None:
            return
        said = record(DisplayData, data) if name == "display" else data["prompt" if name == "input" else "text"]
        answer = call(said)
        answer = await answer if inspect.isawaitable(answer) else answer
        if name == "input":
            await self.sandbox.ask("POST", f"{self._at}/input", json={"text": str(answer)})

    async def variables(self, *, timeout: float | None = None) -> dict[str, str]:
        """What the cells have defined, as short texts."""
        self._check_open()
        seconds = self._timeout if timeout is None else check_timeout(timeout)
        found: dict[str, str] = await self.sandbox.ask("GET", f"{self._at}/variables", seconds=seconds)
        return found

    async def interrupt(self) -> None:
        """Ends the cell that is under way with a KeyboardInterrupt."""
        self._check_open()
        await self.sandbox.ask("POST", f"{self._at}/interrupt")

    async def restart(self) -> None:
        """A new interpreter, without the variables."""
        self._check_open()
        await self.sandbox.ask("POST", f"{self._at}/restart")

    async def fork(self, reseed: bool = True) -> AsyncRemoteSession:
        """A second session in a new sandbox (`.sandbox`), with these variables and files."""
        self._check_open()
        branch = await self.sandbox.ask("POST", f"{self._at}/fork", json={"reseed": reseed}, seconds=300)
        return AsyncRemoteSession(self.sandbox.around(branch["sandbox"]), branch["session"], self._timeout)

    async def close(self) -> None:
        """Ends the interpreter and all that it started. May be called twice."""
        if not self.is_closed:
            self.is_closed = True
            await self.sandbox.ask("DELETE", self._at)

    def _check_open(self) -> None:
        if self.is_closed:
            raise SessionEnded("it was closed")

    async def __aenter__(self) -> AsyncRemoteSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id[:8]} {self.language}>"


class RemoteSession(Session):
    """As `Session`, over there. Callbacks are called by the thread that runs the cell."""

    def __init__(self, session: AsyncRemoteSession, sandbox: RemoteSandbox) -> None:
        self.sandbox = sandbox
        self._async = session  # type: ignore[assignment]
        self.language = session.language

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
        """Runs one cell; see `AsyncSession.run`."""
        visits = Visits()
        given = {"on_stdout": on_stdout, "on_stderr": on_stderr, "on_display": on_display, "on_input": on_input}
        for name, call in given.items():
            refuse_coroutine(name, call)
        lifted = {name: _answering(visits, call) if callable(call) else call for name, call in given.items()}
        return portal.call_visited(visits, self._async.run, code, timeout=timeout, **lifted)

    def variables(self, *, timeout: float | None = None) -> dict[str, str]:
        """What the cells have defined, as short texts."""
        return portal.call(self._async.variables, timeout=timeout)

    def interrupt(self) -> None:
        """For another thread than the one that runs a cell: ends it."""
        portal.call(self._async.interrupt)

    def close(self) -> None:
        """Ends the interpreter and all that it started. May be called twice."""
        portal.call(self._async.close)


def _answering(visits: Visits, call: Callable[[Any], object]) -> Callable[[Any], Any]:
    """A visit brings nothing back by itself: the answer is put aside by whoever was visited."""
    answers: list[object] = []

    async def visit(what: Any) -> object:
        await visits.lift(lambda: answers.append(call(what)))()
        return answers.pop()

    return visit
