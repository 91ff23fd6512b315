"""ClusterSandbox: the driver of a sandbox on a node of a Ray cluster.

It talks to the node's server as `HttpSandbox` does, over a socket that leads there through Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from warmcell.backends.ray.backend import RayBackend
from warmcell.backends.ray.node_link import NodeLink
from warmcell.backends.shared import shared_backend_named
from warmcell.core.errors import InvalidRequest, NodeLost, SandboxDestroyed, SandboxError
from warmcell.core.types import BackendCapabilities
from warmcell.interfaces.client.connection import EXTRA_SECONDS, Connection, import_httpx, import_websockets
from warmcell.interfaces.client.endpoint import SandboxEndpoint
from warmcell.interfaces.client.http_sandbox import HttpSandbox
from warmcell.lifetime.portal import portal

if TYPE_CHECKING:
    from warmcell.net import FetchRequest, FetchResponse
    from warmcell.sandbox.settings import SandboxSettings


class NodeConnection(Connection):
    """To the server of one node, for one sandbox and its forks."""

    def __init__(self, link: NodeLink, path: str) -> None:
        super().__init__("http://127.0.0.1", None)
        self.link, self._path = link, path
        #: Sandboxes that use it; the last one closes it.
        self.users = 1

    @cached_property
    def http(self) -> Any:
        httpx = import_httpx()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        transport = httpx.AsyncHTTPTransport(uds=self._path, limits=limits)
        return httpx.AsyncClient(base_url=self.url, transport=transport, trust_env=False, timeout=EXTRA_SECONDS)

    def open_websocket(self, path: str, **options: Any) -> Any:
        return import_websockets().unix_connect(self._path, uri=f"ws://127.0.0.1{path}", **options)

    def _unreachable(self, error: Exception) -> SandboxError:
        return self.link.lost or super()._unreachable(error)

    async def release(self) -> None:
        self.users -= 1
        if not self.users:
            await self.aclose()


class ClusterEndpoint(SandboxEndpoint):
    """Places the sandbox on a node at its first request; it stays there."""

    connection: NodeConnection

    def __init__(self, backend: RayBackend, settings: SandboxSettings) -> None:
        self.backend, self._settings = backend, settings
        self.path, self.is_closed = "", False
        self.created: Mapping[str, Any] = {}
        self._opening: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        return bool(self.created)

    def join(self, connection: NodeConnection, created: Mapping[str, Any]) -> None:
        """For a sandbox that exists on the node of this connection."""
        self.connection, self.created = connection, created
        self.path = f"/v1/sandboxes/{created['id']}"

    async def open(self) -> None:
        if self.is_closed:
            raise SandboxDestroyed
        if self.is_open:
            return
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        """On another node if the first one is lost meanwhile: nothing has happened in the sandbox yet."""
        for attempts_left in range(self.backend.retries, -1, -1):
            link = await self.backend.place_sandbox(_has_gpus(self._settings))
            try:
                created = await portal.reach(link.call, "sandbox", self._settings)
                self.join(NodeConnection(link, await portal.reach(link.socket_path)), created)
                return
            except BaseException as error:
                self.backend.release_sandbox(link)
                if not isinstance(error, NodeLost) or not attempts_left:
                    raise

    async def request(self, method: str, route: str, **more: Any) -> Any:
        await self.open()
        return await super().request(method, route, **more)

    @asynccontextmanager
    async def events(self, method: str, route: str, **more: Any) -> AsyncIterator[AsyncIterator[tuple[str, Any, str]]]:
        await self.open()
        async with super().events(method, route, **more) as events:
            yield events

    def check_open(self) -> None:
        if self.is_closed:
            raise SandboxDestroyed
        if self.is_open:
            super().check_open()


class ClusterSandbox(HttpSandbox):
    """`settings` are carried out on the node: paths in them are paths there."""

    _endpoint: ClusterEndpoint

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        backend = settings.backend if isinstance(settings.backend, RayBackend) else shared_backend_named("ray")
        assert isinstance(backend, RayBackend)
        self.timeout, self.limits = settings.timeout, settings.effective_limits
        self.place = "ray"
        self._use(ClusterEndpoint(backend, _node_settings(settings, backend)))

    @property
    def id(self) -> str:  # type: ignore[override]
        """The node's id and the sandbox's; empty until the sandbox has been placed."""
        created = self._endpoint.created
        return f"{created['id']}-{self._endpoint.connection.link.info.id[:8]}" if created else ""

    def capabilities(self) -> BackendCapabilities:
        """Those of its node; of the cluster before it has one. Blocks then."""
        found: BackendCapabilities | None = self._endpoint.created.get("capabilities")
        return found or self._endpoint.backend.capabilities()

    async def start(self) -> None:
        await self._endpoint.open()

    async def fetch(self, request: FetchRequest | str) -> FetchResponse:
        await self._endpoint.open()
        link, created = self._endpoint.connection.link, self._endpoint.created
        response: FetchResponse = await portal.reach(link.call, "fetch", created["id"], request)
        return response

    def _sibling(self, created: Mapping[str, Any]) -> ClusterSandbox:
        sibling = ClusterSandbox(self._settings)
        connection, mine = self._endpoint.connection, self._endpoint.created
        connection.users += 1
        sibling._endpoint.join(connection, {"capabilities": mine.get("capabilities"), **created})
        self._endpoint.backend.hold_sandbox(connection.link)
        return sibling

    async def close(self) -> None:
        endpoint = self._endpoint
        if endpoint.is_closed:
            return
        if endpoint._opening is not None and not endpoint.is_open:
            await asyncio.wait([endpoint._opening])
        if not endpoint.is_open:
            endpoint.is_closed = True
            return
        try:
            with suppress(NodeLost):
                await super().close()
        finally:
            await endpoint.connection.release()
            endpoint.backend.release_sandbox(endpoint.connection.link)


def _node_settings(settings: SandboxSettings, backend: RayBackend) -> SandboxSettings:
    """As on one host: a backend object brings its configuration and policy, and has them alone."""
    if not isinstance(settings.backend, RayBackend):
        return replace(settings, backend="process")
    if settings.config is not None:
        hint = "leave it out, or name the backend"
        raise InvalidRequest("the backend already has one", field="config", hint=hint)
    policy = settings.policy if settings.policy is not None else backend.policy
    return replace(settings, backend="process", config=backend.config, policy=policy)


def _has_gpus(settings: SandboxSettings) -> bool:
    return settings.policy is not None and settings.policy.gpus is not None
