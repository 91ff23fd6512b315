"""The server of sandboxes on a node of a cluster: `/v1` on a Unix socket in a private directory of the node.

Only the actor of the node connects to it, for the one program that started that actor.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

from starlette.middleware import Middleware

from warmcell.core.light import on_error
from warmcell.core.records import replace
from warmcell.core.types import MAX_TIMEOUT, BackendCapabilities
from warmcell.interfaces.serve.app import make_app
from warmcell.interfaces.serve.http_protocol import DeadlineProtocol
from warmcell.interfaces.serve.listener import ConnectionLimit, Server, make_config
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry, SandboxRegistry
from warmcell.interfaces.serve.service import LOCAL_TENANT, Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.sandboxes import sandbox_to_dict
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.temporary_directory import socket_directory
from warmcell.lifetime.threads import in_thread
from warmcell.net import FetchRequest, FetchResponse
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.local.driver import LocalSandbox
from warmcell.sandbox.settings import SandboxSettings
from warmcell.workspace.snapshot import SnapshotId
from warmcell.workspaces.store import SharedSnapshots

#: Without quotas and lifetimes: the program that started the actor decides about its sandboxes.
_MOST = 1 << 16
_FOREVER = 366 * 86_400.0
_SETTINGS = Settings(max_body=1 << 30, max_timeout=MAX_TIMEOUT, max_connections=_MOST, sandboxes=_MOST, drain_timeout=0)
_TENANT = replace(LOCAL_TENANT, sandboxes=_MOST, runs=_MOST, lifetime=int(_FOREVER), disk_mb=0)


S = TypeVar("S", bound="SocketServer")


class _EndlessRegistry(SandboxRegistry):
    """Sandboxes and their forks live until the program that made them ends them."""

    def _register(
        self, sandbox: AsyncSandbox, tenant: Tenant, seconds: float, metadata: Mapping[str, str]
    ) -> SandboxEntry:
        return super()._register(sandbox, tenant, _FOREVER, metadata)


class _QuietServer(Server):
    """Handles no signals: it is only a part of its process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class SocketServer:
    """Serves the application of a service on a Unix socket. `http` is the protocol class of its connections."""

    def __init__(self, service: Service, inner: Sequence[Middleware] = (), http: Any = DeadlineProtocol) -> None:
        self._service, self._inner, self._http = service, inner, http
        self._stack = ExitStack()
        directory = self._stack.enter_context(socket_directory("node"))
        self.path = os.path.join(directory, "socket")
        self._serving: asyncio.Task[None] | None = None
        self._server: Server | None = None

    async def start(self) -> None:
        listening = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(self.path)
        listening.listen(1024)
        is_started = asyncio.Event()
        app = ConnectionLimit(make_app(self._service, self._inner), _SETTINGS.max_connections)
        config = make_config(app, _SETTINGS, http=self._http)
        self._server = _QuietServer(config, self._service, lambda _: is_started.set())
        config.load()
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listening]))
        started = asyncio.ensure_future(is_started.wait())
        await asyncio.wait([self._serving, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._serving.done():
            self._serving.result()

    async def close(self) -> None:
        await self._service.aclose()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = self._server.force_exit = True
            await asyncio.wait([self._serving])
        await in_thread(self._stack.close)


class NodeServer(SocketServer):
    """The server of sandboxes for the program that started the actor."""

    def __init__(self, config: ProcessConfig) -> None:
        service = Service(_SETTINGS, config)
        service.sandboxes = _EndlessRegistry()
        service._local_tenant = _TENANT
        super().__init__(service)

    async def add_sandbox(self, settings: SandboxSettings) -> dict[str, Any]:
        """Make a sandbox; return its description, as of the `/v1` routes, with its capabilities."""
        sandbox = AsyncSandbox._with_driver(LocalSandbox(settings))
        async with on_error(sandbox.destroy):
            await sandbox.start()
            found = await in_thread(sandbox.capabilities)
        entry = self._service.sandboxes.add(lambda: sandbox, _TENANT, _FOREVER, {})
        plain = BackendCapabilities(
            found.supported_languages, found.isolation_class, found.enforced_limits, found.network
        )
        return {**sandbox_to_dict(entry), "capabilities": plain}

    async def fetch(self, identity: str, request: FetchRequest | str) -> FetchResponse:
        return await self._find(identity).fetch(request)

    async def take_snapshot(self, identity: str, *place: Any) -> SnapshotId:
        """`place` has the arguments of `SharedSnapshots`."""
        snapshots = await in_thread(lambda: SharedSnapshots(*place))
        return await self._find(identity)._local.files.call(snapshots.take, identity)

    async def restore_snapshot(self, identity: str, snapshot: str, *place: Any) -> None:
        snapshots = await in_thread(lambda: SharedSnapshots(*place))
        await self._find(identity)._local.files.call(snapshots.restore, snapshot)

    def _find(self, identity: str) -> AsyncSandbox:
        return self._service.sandboxes.find(_TENANT, identity).sandbox


async def start_server(config: ProcessConfig) -> NodeServer:
    return await start(partial(NodeServer, config))


async def start(make: Callable[[], S]) -> S:
    """Start a server; close it if it cannot start."""
    server = await in_thread(make)
    async with on_error(server.close):
        await server.start()
    return server
