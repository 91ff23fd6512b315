"""`/mcp`: the tools of `warmcell mcp` for this server's tenants, over streamable HTTP. One sandbox for each session,
which counts as any other of its tenant's; its calls take their turn in the queue.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.routing import Route

from warmcell.core.errors import ProvisionFailed, SandboxError
from warmcell.interfaces.serve.ceiling import USUAL_SECONDS
from warmcell.interfaces.serve.doors import admitted
from warmcell.interfaces.serve.exchange import Refused, refusal
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.tokens import Tenant

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

IDLE_SECONDS = 600.0
_TENANT = "warmcell.tenant"
_SESSION = "mcp-session-id"


class HeldPlace:
    """Where a session's sandbox is: among those that the server holds for its tenant."""

    def __init__(self, service: Service, tenant: Tenant) -> None:
        self._service, self._tenant = service, tenant
        try:
            self._held = service.held.add(
                lambda: service.make_sandbox(tenant, timeout=min(USUAL_SECONDS, service.settings.max_timeout)),
                tenant,
                tenant.lifetime,
                {"door": "mcp"},
            )
        except Refused as error:  # in words of the sandbox: this one is told inside an answer
            raise ProvisionFailed("sandbox", error.message, "end another session, or wait") from None
        self.sandbox = self._held.sandbox
        self.max_timeout = int(service.settings.max_timeout)

    def turn(self) -> AbstractAsyncContextManager[object]:
        return self._service.turn(self._tenant)

    async def end(self) -> None:
        await self._service.held.remove(self._held)


class McpDoor:
    """An ASGI application. The SDK is loaded with the first request: most servers have no such clients."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._starting: asyncio.Task[StreamableHTTPSessionManager] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._calls: set[object] = set()
        service.on_close.append(self._aclose)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        try:
            tenant = admitted(request, "sandbox")
            manager = await self._manager()
            self._admit(request, tenant, manager)
            self._service.under_way.enter(tenant)
        except (Refused, SandboxError) as error:
            await refusal(error)(scope, receive, send)
            return
        call = object()
        if scope["method"] == "POST":
            self._calls.add(call)
        try:
            await manager.asgi_app(scope, receive, send)
        finally:
            self._calls.discard(call)
            self._service.under_way.leave(tenant)

    def _admit(self, request: Request, tenant: Tenant, manager: StreamableHTTPSessionManager) -> None:
        """The SDK lets a session be used by who began it, and is told here who that is."""
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context
        from mcp.server.auth.provider import AccessToken

        user = AuthenticatedUser(AccessToken(token="", client_id=tenant.id, scopes=[]))
        theirs = sum(owner == authorization_context(user) for owner in manager._session_owners.values())
        if _SESSION not in request.headers and theirs >= tenant.sandboxes:
            raise Refused(429, f"you have {tenant.sandboxes} sessions already", headers={"Retry-After": "5"})
        request.scope["user"], request.scope[_TENANT] = user, tenant

    async def _manager(self) -> StreamableHTTPSessionManager:
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> StreamableHTTPSessionManager:
        try:
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

            from warmcell.interfaces.mcp.server import make_server
        except ImportError:
            self._starting = None
            raise Refused(501, "this server lacks the package 'mcp': pip install 'warmcell[mcp]'") from None
        service = self._service
        server = make_server(lambda context: HeldPlace(service, context.request.scope[_TENANT]), is_http=True)
        manager = StreamableHTTPSessionManager(
            app=server,
            session_idle_timeout=IDLE_SECONDS,
            max_request_body_size=service.settings.max_body,
            max_sessions=service.settings.max_connections,
        )
        is_ready = asyncio.Event()
        self._serving = asyncio.ensure_future(self._serve(manager, is_ready))
        await is_ready.wait()
        return manager

    async def _serve(self, manager: StreamableHTTPSessionManager, is_ready: asyncio.Event) -> None:
        """Until the server drains and the calls that were under way then are answered: streams would stand for ever."""
        async with manager.run():
            is_ready.set()
            await self._service.draining.wait()
            while self._calls:
                await asyncio.sleep(0.05)

    async def _aclose(self) -> None:
        if self._serving is not None:
            self._calls.clear()
            await self._serving


def routes(service: Service) -> list[Route]:
    return [Route("/mcp", McpDoor(service))]
