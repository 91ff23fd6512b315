"""Processes of a remote sandbox: `AsyncRemoteProcess`, and `RemoteProcess` for blocking code."""

from __future__ import annotations

import asyncio
import dataclasses
from base64 import b64decode
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from warmcell.backends.many import in_step
from warmcell.backends.output_callbacks import Texts
from warmcell.core.errors import BackendUnavailable, InvalidRequest, SandboxError
from warmcell.core.output_events import OutputEvent
from warmcell.core.types import ExecResult
from warmcell.interfaces.client.wire import outcome
from warmcell.lifetime.portal import portal
from warmcell.sandbox.processes import Process, ProcessInfo, PtySize

if TYPE_CHECKING:
    from warmcell.interfaces.client.sandboxes import AsyncRemoteSandbox

#: What one question about its end waits for at most, on the server.
_WAIT_SECONDS = 30.0
#: How often a connection that was lost is made again before its loss is told.
_ATTEMPTS = 3


class AsyncRemoteProcess:
    """As `AsyncProcess`. `is_running` and `info` are as of the last answer about it; `refresh` asks for one."""

    def __init__(self, sandbox: AsyncRemoteSandbox, info: ProcessInfo) -> None:
        self._sandbox, self.info = sandbox, info
        self._at = f"processes/{info.pid}"
        self._hearing: asyncio.Future[None] | None = None

    @property
    def pid(self) -> int:
        """As the guest sees it."""
        return self.info.pid

    @property
    def is_running(self) -> bool:
        return self.info.is_running

    async def refresh(self) -> ProcessInfo:
        self.info = ProcessInfo(**await self._sandbox.ask("GET", self._at))
        return self.info

    async def write(self, data: str | bytes) -> None:
        """Gives it to the program to read; returns when the program has taken all of it."""
        if not isinstance(data, str | bytes):
            raise InvalidRequest(f"must be text or bytes, not {type(data).__name__}", field="data")
        raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
        await self._sandbox.ask("POST", f"{self._at}/stdin", content=raw, seconds=3600)

    async def close_stdin(self) -> None:
        """The program reads what was written, and then the end."""
        await self._sandbox.ask("DELETE", f"{self._at}/stdin")

    async def resize(self, cols: int, rows: int) -> None:
        """Of its terminal; the program is told by SIGWINCH."""
        await self._sandbox.ask("POST", f"{self._at}/resize", json=dataclasses.asdict(PtySize(cols, rows)))

    async def signal(self, number: int) -> None:
        """To the program and its process group."""
        if not isinstance(number, int) or not 0 <= number <= 64:
            raise InvalidRequest("must be the number of a signal", field="number")
        await self._sandbox.ask("POST", f"{self._at}/signal", json={"signal": int(number)})

    async def kill(self) -> None:
        """Ends it and everything that it started."""
        await self._sandbox.ask("DELETE", self._at)
        await self.refresh()

    async def wait(self, timeout: float | None = None) -> ExecResult:
        """The result, when it has ended. `TimeoutError` after `timeout` seconds: the process goes on."""
        async with asyncio.timeout(timeout):
            return await self._wait()

    async def _wait(self) -> ExecResult:
        if self._hearing is not None:
            await asyncio.shield(self._hearing)
        plain: dict[str, Any] = {"status": "running"}
        while plain["status"] == "running":
            params = {"timeout": _WAIT_SECONDS}
            plain = await self._sandbox.ask("GET", f"{self._at}/wait", params=params, seconds=_WAIT_SECONDS)
        await self.refresh()
        return outcome(plain)

    async def output(self) -> AsyncGenerator[OutputEvent]:
        """What is still kept, then what comes, as bytes, until it has ended. A lost connection is made anew."""
        heard, failures = "0-0", 0
        while True:
            try:
                async with self._sandbox.events("GET", f"{self._at}/output", params={"from": heard}) as events:
                    async for name, data, place in events:
                        if name == "result":
                            return
                        heard, failures = place, 0
                        yield OutputEvent(name, b64decode(data["base64"]))
            except BackendUnavailable:
                failures += 1
                if failures >= _ATTEMPTS:
                    raise

    def hear(self, texts: Texts) -> None:
        """Calls back as output comes; what a callback raises ends the process, and is raised by `wait`."""
        self._hearing = asyncio.ensure_future(self.tell(texts))

    async def tell(self, texts: Texts) -> None:
        try:
            async with aclosing(self.output()) as events:
                async for event in events:
                    await texts.hear(event)
            await texts.finish()
        except Exception:
            with suppress(SandboxError):  # it has ended, or its sandbox
                await self.kill()
            raise

    def __repr__(self) -> str:
        state = "running" if self.is_running else f"ended with {self.info.exit_code}"
        return f"<{type(self).__name__} {self.pid} {state}>"


class RemoteProcess(Process):
    """`AsyncRemoteProcess` for blocking code. `is_running` and `info` ask the server."""

    def __init__(self, process: AsyncRemoteProcess) -> None:
        self._remote = process
        super().__init__(process)  # type: ignore[arg-type]

    @property
    def is_running(self) -> bool:
        return self.info.is_running

    @property
    def info(self) -> ProcessInfo:
        return portal.call(self._remote.refresh)

    def output(self) -> Iterator[OutputEvent]:
        """What is still kept, then what comes, as bytes, until the process has ended."""
        return in_step(self._remote.output())

    def _kill_unheard(self) -> None:
        with suppress(SandboxError):  # it has ended, or its sandbox
            portal.call(self._remote.kill)
