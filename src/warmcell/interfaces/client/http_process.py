"""HttpProcess: a process of a sandbox on a server."""

from __future__ import annotations

import asyncio
import dataclasses
from base64 import b64decode
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import Any

from warmcell.backends.many import in_step
from warmcell.core.errors import BackendUnavailable, SandboxError
from warmcell.core.output_events import OutputEvent
from warmcell.core.types import ExecResult
from warmcell.interfaces.client.endpoint import SandboxEndpoint
from warmcell.interfaces.client.wire import outcome, record
from warmcell.lifetime.portal import portal
from warmcell.sandbox.interface import ProcessInfo, PtySize

#: The longest that one request waits for the end of the process, on the server.
_WAIT_SECONDS = 30.0
#: Failed connections in a row after which `output` gives up.
_ATTEMPTS = 3


class HttpProcess:
    def __init__(self, endpoint: SandboxEndpoint, info: ProcessInfo) -> None:
        self._endpoint, self.info = endpoint, info
        self._route = f"processes/{info.pid}"

    async def refresh(self) -> ProcessInfo:
        self.info = record(ProcessInfo, await self._endpoint.request("GET", self._route))
        return self.info

    def refresh_blocking(self) -> ProcessInfo:
        return portal.call(self.refresh)

    async def write(self, data: bytes) -> None:
        await self._endpoint.request("POST", f"{self._route}/stdin", content=data, seconds=3600)

    async def close_stdin(self) -> None:
        await self._endpoint.request("DELETE", f"{self._route}/stdin")

    async def resize(self, size: PtySize) -> None:
        await self._endpoint.request("POST", f"{self._route}/resize", json=dataclasses.asdict(size))

    async def signal(self, number: int) -> None:
        await self._endpoint.request("POST", f"{self._route}/signal", json={"signal": number})

    async def kill(self) -> None:
        await self._endpoint.request("DELETE", self._route)
        await self.refresh()

    async def kill_quietly(self) -> None:
        with suppress(SandboxError):  # the process or its sandbox has ended
            await self.kill()

    async def wait(self, callbacks: asyncio.Future[None] | None = None) -> ExecResult:
        if callbacks is not None:
            await asyncio.shield(callbacks)
        answer: dict[str, Any] = {"status": "running"}
        while answer["status"] == "running":
            params = {"timeout": _WAIT_SECONDS}
            answer = await self._endpoint.request("GET", f"{self._route}/wait", params=params, seconds=_WAIT_SECONDS)
        await self.refresh()
        return outcome(answer)

    async def output(self) -> AsyncGenerator[OutputEvent]:
        """Reconnects when the connection is lost, and resumes after the last event."""
        position, failures = "0-0", 0
        while True:
            try:
                async with self._endpoint.events("GET", f"{self._route}/output", params={"from": position}) as events:
                    async for name, data, event_id in events:
                        if name == "result":
                            return
                        position, failures = event_id, 0
                        yield OutputEvent(name, b64decode(data["base64"]))  # type: ignore[arg-type]
            except BackendUnavailable:
                failures += 1
                if failures >= _ATTEMPTS:
                    raise

    def output_blocking(self) -> Iterator[OutputEvent]:
        return in_step(self.output())
