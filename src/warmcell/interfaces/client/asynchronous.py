"""AsyncClient: a backend that is somewhere else, and sandboxes there."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from typing import Any

from warmcell.core.output_events import OutputEvent, ResultEvent, StreamEvent
from warmcell.core.types import BackendCapabilities, EnforcedLimits, ExecRequest, ExecResult, Limits
from warmcell.interfaces.client.connection import PATIENCE, Connection, httpx_module
from warmcell.interfaces.client.sandboxes import AsyncRemoteSandbox
from warmcell.interfaces.client.wire import outcome, plain_limits, plain_request


class AsyncClient:
    """`AsyncClient("http://127.0.0.1:8000", token=...)`: a `SandboxBackend`, for one event loop; close it when done."""

    name = "remote"

    def __init__(self, url: str, token: str | None = None) -> None:
        self._connection = Connection(url, token)

    async def execute(self, request: ExecRequest) -> ExecResult:
        """Runs it there; raises what a backend here would raise."""
        self._connection.check_open()
        return outcome(
            await self._connection.ask("POST", "/v1/run", json=plain_request(request), seconds=request.timeout)
        )

    async def stream(self, request: ExecRequest) -> AsyncIterator[StreamEvent]:
        """`OutputEvent`s as they come, last a `ResultEvent`. Leaving it ends the run."""
        self._connection.check_open()
        async with self._connection.events("POST", "/v1/run", json=plain_request(request)) as events:
            async for name, data, _ in events:
                if name == "result":
                    yield ResultEvent(outcome(data))
                else:
                    yield OutputEvent(name, b64decode(data["base64"]))  # type: ignore[arg-type]

    def capabilities(self) -> BackendCapabilities:
        """What that host can run, and what really holds there. Asked once, and waited for."""
        return self._capabilities

    @cached_property
    def _capabilities(self) -> BackendCapabilities:
        url, headers = self._connection.url, self._connection.headers
        with httpx_module().Client(base_url=url, headers=headers, trust_env=False, timeout=PATIENCE) as client:
            answer = client.get("/v1/capabilities")
        if answer.status_code >= 400:
            raise self._connection.refusal(answer)
        found = answer.json()
        return BackendCapabilities(
            supported_languages=tuple(found["languages"]),
            isolation_class=found["isolation_class"],
            enforced_limits=EnforcedLimits(**found["enforced_limits"]),
            network=tuple(found["network"]),
            versions=found["versions"],
        )

    async def sandbox(
        self,
        *,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        limits: Limits | None = None,
        live: bool = False,
        forkable: bool = False,
        lifetime: float = 3600.0,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncRemoteSandbox:
        """A new `AsyncSandbox`, over there, which goes away after `lifetime` seconds at the latest. Its runs may take
        `timeout` seconds: 30 where nothing is said, or the longest that the server allows."""
        self._connection.check_open()
        asked: dict[str, Any] = {"env": dict(env or {}), "timeout": timeout, "live": live, "forkable": forkable}
        asked |= {"limits": plain_limits(limits), "lifetime": lifetime, "metadata": dict(metadata or {})}
        made = await self._connection.ask("POST", "/v1/sandboxes", json=asked)
        return AsyncRemoteSandbox(self._connection, self.capabilities, made)

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
