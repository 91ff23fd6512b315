"""ClusterSandbox: the driver of a sandbox on a node of a Ray cluster.

It talks to the node's server as `HttpSandbox` does, over a socket that leads there through Ray.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from warmcell.backends.ray.backend import RayBackend
from warmcell.backends.ray.node_link import NodeLink
from warmcell.backends.ray.node_service import SANDBOXES
from warmcell.backends.shared import shared_backend_named
from warmcell.core.errors import InvalidRequest, NodeLost, SandboxDestroyed, SandboxError
from warmcell.core.types import BackendCapabilities
from warmcell.interfaces.client.connection import (
    EXTRA_SECONDS,
    Connection,
    SandboxEndpoint,
    import_httpx,
    import_websockets,
)
from warmcell.interfaces.client.http_files import HttpFiles
from warmcell.interfaces.client.http_sandbox import HttpSandbox
from warmcell.lifetime.portal import portal
from warmcell.sandbox.local.guest_config import DEFAULT_POLICY, with_limits
from warmcell.workspace.snapshot import SnapshotId
from warmcell.workspaces.snapshots.chunks import KEY_VARIABLE, parse_key

if TYPE_CHECKING:
    from warmcell.net import FetchRequest, FetchResponse
    from warmcell.sandbox.settings import SandboxSettings


class NodeConnection(Connection):
    """A connection to the server of one node, for one sandbox and its forks."""

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
    """The routes of a sandbox that is placed on a node at its first request, and stays there."""

    connection: NodeConnection

    def __init__(self, backend: RayBackend, settings: SandboxSettings) -> None:
        self.backend, self._settings = backend, settings
        self.path, self.is_closed = "", False
        #: The last of the snapshots that outlast the node.
        self.last_snapshot: SnapshotId | None = None
        #: The loss of its node, until it has been restored on another.
        self._loss: NodeLost | None = None
        self.created: Mapping[str, Any] = {}
        self._opening: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        return bool(self.created)

    def join(self, connection: NodeConnection, created: Mapping[str, Any]) -> None:
        """Use a sandbox that exists on the node of this connection."""
        self.connection, self.created = connection, created
        self.path = f"/v1/sandboxes/{created['id']}"

    async def open(self) -> None:
        if self.is_closed:
            raise SandboxDestroyed
        if self._loss is not None:
            raise self._explain_loss(self._loss)
        await self._place()

    async def _place(self) -> None:
        if self.is_open:
            return
        if self.is_closed:  # meanwhile
            raise SandboxDestroyed
        if self._opening is None or self._opening.done():  # it has failed
            self._opening = asyncio.ensure_future(self._open())
        await asyncio.shield(self._opening)

    async def ask_node(self, method: str, *values: Any) -> Any:
        """Call a method of the node's server of sandboxes, for what has no route."""
        await self.open()
        return await self._ask(method, *values)

    async def _ask(self, method: str, *values: Any) -> Any:
        link, identity = self.connection.link, self.created["id"]
        return await portal.call_async(link.call, "ask_server", SANDBOXES, method, identity, *values)

    async def restore(self, snapshot: str, *place: Any) -> None:
        """Restore on another node if this one is lost. Until that succeeds, the sandbox stays lost."""
        for attempts_left in range(self.backend.retries, -1, -1):
            if self.is_closed:
                raise SandboxDestroyed
            await self._leave_lost_node()
            try:
                await self._place()
                await self._ask("restore_snapshot", snapshot, *place)
                self._loss = None
                return
            except NodeLost:
                if not attempts_left:
                    raise

    async def _leave_lost_node(self) -> None:
        if self.is_open and isinstance(self.connection.link.lost, NodeLost):
            lost, self._loss = self.connection, self.connection.link.lost
            self.created = {}
            self.backend.release_sandbox(lost.link)
            await lost.release()

    async def _open(self) -> None:
        """Make the sandbox; on another node if the first is lost meanwhile: nothing has happened in the sandbox yet."""
        for attempts_left in range(self.backend.retries, -1, -1):
            settings = self._settings
            has_gpus = settings.policy is not None and settings.policy.gpus is not None
            link = await self.backend.place_sandbox(has_gpus)
            try:
                if settings.image is not None:  # by digest from now on, and in the store of the node
                    settings = replace(settings, image=await self.backend.provide_image(link, settings.image))
                created = await portal.call_async(link.call, "sandbox", settings)
                self.join(NodeConnection(link, await portal.call_async(link.socket_path)), created)
                return
            except BaseException as error:
                self.backend.release_sandbox(link)
                if not isinstance(error, NodeLost) or not attempts_left:
                    raise

    async def request(self, method: str, route: str, **more: Any) -> Any:
        await self.open()
        try:
            return await super().request(method, route, **more)
        except NodeLost as error:
            raise self._explain_loss(error) from None

    def _explain_loss(self, error: NodeLost) -> NodeLost:
        made = NodeLost(error.node, error.reason)
        made.hint = "the sandbox was lost with its node: make another"
        if self.last_snapshot is not None:
            made.hint = f"restore({str(self.last_snapshot)!r}) brings back its last snapshot on another node"
        return made

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


class ClusterFiles(HttpFiles):
    """Keeps snapshots where the backend says; any node can restore them from there."""

    _endpoint: ClusterEndpoint

    async def snapshot(self) -> SnapshotId:
        if (place := _snapshot_place(self._endpoint.backend)) is None:
            return await super().snapshot()
        self._endpoint.last_snapshot = await self._endpoint.ask_node("take_snapshot", *place)
        return self._endpoint.last_snapshot

    async def restore(self, snapshot: str) -> None:
        """Restore, on another node if the sandbox's own is lost."""
        if (place := _snapshot_place(self._endpoint.backend)) is None:
            await super().restore(snapshot)
        else:
            await self._endpoint.restore(str(snapshot), *place)


class ClusterSandbox(HttpSandbox):
    """The driver of a sandbox on a node. Paths in `settings` are paths on the node."""

    _endpoint: ClusterEndpoint

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        backend = settings.backend if isinstance(settings.backend, RayBackend) else shared_backend_named("ray")
        assert isinstance(backend, RayBackend)
        on_node = _node_settings(settings, backend)
        self.timeout, self.limits = settings.timeout, on_node.effective_limits
        self.place = "ray"
        self._use(ClusterEndpoint(backend, on_node))
        self.files = ClusterFiles(self._endpoint)

    @property
    def id(self) -> str:  # type: ignore[override]
        """The node's id and the sandbox's; empty until the sandbox has been placed."""
        created = self._endpoint.created
        return f"{created['id']}-{self._endpoint.connection.link.info.id[:8]}" if created else ""

    def capabilities(self) -> BackendCapabilities:
        """The capabilities of its node; before it has one, of the cluster, which may block."""
        found: BackendCapabilities | None = self._endpoint.created.get("capabilities")
        return found or self._endpoint.backend.capabilities()

    async def start(self) -> None:
        await self._endpoint.open()

    async def fetch(self, request: FetchRequest | str) -> FetchResponse:
        response: FetchResponse = await self._endpoint.ask_node("fetch", request)
        return response

    def _sibling(self, created: Mapping[str, Any]) -> ClusterSandbox:
        sibling = ClusterSandbox(self._settings)
        connection, mine = self._endpoint.connection, self._endpoint.created
        connection.users += 1
        sibling._endpoint.join(connection, {"capabilities": mine.get("capabilities"), **created})
        self._endpoint.backend.hold_sandbox(connection.link)
        return sibling

    async def _close(self) -> None:
        endpoint = self._endpoint
        if endpoint.is_closed:  # and released, by a close that failed
            return
        while endpoint._opening is not None and not endpoint._opening.done():  # a restore may have begun another
            await asyncio.wait([endpoint._opening])
        if not endpoint.is_open:
            endpoint.is_closed = True
            return
        try:
            with suppress(NodeLost):
                await super()._close()
        finally:
            await endpoint.connection.release()
            endpoint.backend.release_sandbox(endpoint.connection.link)


def _node_settings(settings: SandboxSettings, backend: RayBackend) -> SandboxSettings:
    """The settings on the node. As on one host, the configuration and policy are those of a backend object.

    Only limits may be added; the smaller of two applies.
    """
    if not isinstance(settings.backend, RayBackend):
        return replace(settings, backend="process")
    asked = settings.policy
    has_policy = asked is not None and replace(asked, limits=None) != DEFAULT_POLICY
    for field, is_set in (("config", settings.config is not None), ("policy", has_policy)):
        if is_set:
            raise InvalidRequest("the backend already has one", field=field, hint="leave it out, or name the backend")
    policy = backend.policy if asked is None else with_limits(backend.policy, asked.limits)
    return replace(settings, backend="process", config=backend.config, policy=policy)


def _snapshot_place(backend: RayBackend) -> tuple[str, dict[str, Any], bytes | None] | None:
    """URL, options of its file system, and the key that encrypts snapshots."""
    if backend.snapshot_url is None:
        return None
    key = os.environ.get(KEY_VARIABLE)
    return backend.snapshot_url, backend.snapshot_options, parse_key(key) if key else None
