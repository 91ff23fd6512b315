"""HttpSession: a session of a sandbox on a server."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import InvalidRequest, SessionEnded
from warmcell.interfaces.client.endpoint import SandboxEndpoint
from warmcell.interfaces.client.wire import cell_outcome, record
from warmcell.lifetime.portal import Visits, portal
from warmcell.sandbox.interface import NO_CALLBACKS, CellCallbacks
from warmcell.sessions.cell_results import CellResult, DisplayData

if TYPE_CHECKING:
    from warmcell.sandbox.interface import CheckpointDriver, SandboxDriver

Callback = Callable[[Any], object]
_ASK_AGAIN_SECONDS = 0.05


class HttpSession:
    def __init__(
        self,
        endpoint: SandboxEndpoint,
        created: Mapping[str, Any],
        make_sandbox: Callable[[Mapping[str, Any]], SandboxDriver],
    ) -> None:
        """`created` is the server's description of the session."""
        self.id: str = created["id"]
        self.language: str = created["language"]
        self.is_closed = False
        self._endpoint, self._make_sandbox = endpoint, make_sandbox
        self._route = f"sessions/{self.id}"
        #: Cells whose requests are on their way or answered in part, in order.
        self._cells: list[asyncio.Event] = []

    async def run(self, code: str, timeout: float, callbacks: CellCallbacks) -> CellResult:
        ended = asyncio.Event()
        self._cells.append(ended)
        try:
            return await self._run(code, timeout, callbacks)
        finally:
            self._cells.remove(ended)
            ended.set()

    async def _run(self, code: str, timeout: float, callbacks: CellCallbacks) -> CellResult:
        body = {"code": code, "timeout": timeout, "answers_input": callbacks.on_input is not None}
        if callbacks is NO_CALLBACKS:
            return cell_outcome(await self._request("POST", "/run", json=body, seconds=timeout))
        self._check_open()
        result = CellResult()
        async with self._endpoint.events("POST", f"{self._route}/run", json=body) as events:
            async for name, data, _ in events:
                if name == "result":
                    result = cell_outcome(data)
                else:
                    await self._call_back(name, data, callbacks)
        return result

    async def _call_back(self, name: str, data: dict[str, Any], callbacks: CellCallbacks) -> None:
        callback: Callback | None = getattr(callbacks, f"on_{name}", None)
        if callback is None:
            return
        value = record(DisplayData, data) if name == "display" else data["prompt" if name == "input" else "text"]
        answer = callback(value)
        answer = await answer if inspect.isawaitable(answer) else answer
        if name == "input":
            await self._request("POST", "/input", json={"text": str(answer)})

    def run_blocking(self, code: str, timeout: float, callbacks: CellCallbacks) -> CellResult:
        if callbacks is NO_CALLBACKS:
            return portal.call(self.run, code, timeout, callbacks)
        visits = Visits()
        lifted = {name: _visit(visits, getattr(callbacks, name)) for name in CellCallbacks.__slots__}
        return portal.call_visited(visits, self.run, code, timeout, CellCallbacks(**lifted))

    async def variables(self, timeout: float) -> dict[str, str]:
        values: dict[str, str] = await self._request("GET", "/variables", seconds=timeout)
        return values

    def variables_blocking(self, timeout: float) -> dict[str, str]:
        return portal.call(self.variables, timeout)

    async def interrupt(self) -> bool:
        """Asks again while the request of a cell has not reached the server."""
        cell = self._cells[0] if self._cells else None
        while True:
            answer = await self._request("POST", "/interrupt")
            is_done: bool = answer is None or answer["interrupted"]  # None: a server that does not say
            if is_done or cell is None or cell.is_set():
                return is_done
            with suppress(TimeoutError):
                async with asyncio.timeout(_ASK_AGAIN_SECONDS):
                    await cell.wait()

    async def restart(self) -> None:
        await self._request("POST", "/restart")

    async def fork(self, reseed: bool) -> tuple[SandboxDriver, HttpSession]:
        created = await self._request("POST", "/fork", json={"reseed": reseed}, seconds=300)
        sandbox = self._make_sandbox(created["sandbox"])
        endpoint = SandboxEndpoint(self._endpoint.connection, created["sandbox"]["id"])
        return sandbox, HttpSession(endpoint, created["session"], self._make_sandbox)

    async def checkpoint(self) -> CheckpointDriver:
        raise InvalidRequest("sessions on a server have no checkpoints", hint="fork the session as often as needed")

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            await self._endpoint.request("DELETE", self._route)

    async def _request(self, method: str, route: str, **more: Any) -> Any:
        self._check_open()
        return await self._endpoint.request(method, self._route + route, **more)

    def _check_open(self) -> None:
        if self.is_closed:
            raise SessionEnded(SessionEnded.CLOSED)


def _visit(visits: Visits, callback: Callback | None) -> Callback | None:
    """Has the waiting thread call the callback; its answer comes back through a list, as a visit returns nothing."""
    if callback is None:
        return None
    answers: list[object] = []

    async def visit(value: Any) -> object:
        await visits.lift(lambda: answers.append(callback(value)))()
        return answers.pop()

    return visit
