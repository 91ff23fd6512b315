"""`/mcp`: the tools of `warmcell mcp` over streamable HTTP.

Each MCP session has one sandbox, which counts towards its tenant's quota; its calls wait in the queue like other runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.routing import Route

from warmcell.core.errors import ProvisionFailed, SandboxError
from warmcell.interfaces.serve.authentication import authenticate
from warmcell.interfaces.serve.middleware import annotate_events
from warmcell.interfaces.serve.requests import (
    HAS_RIGHT,
    OWNER,
    RESPONSE_END,
    RequestsById,
    check_mcp_message,
    read_body,
    while_allowed,
)
from warmcell.interfaces.serve.responses import ClientDisconnected, HttpError, error_response
from warmcell.interfaces.serve.server_limits import DEFAULT_TIMEOUT
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.tokens import Tenant

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

IDLE_SECONDS = 600.0
_TENANT = "warmcell.tenant"
_SCOPE = "sandbox"
_SESSION = "mcp-session-id"


class TenantSandbox:
    """The sandbox of an MCP session, registered for its tenant."""

    def __init__(self, service: Service, tenant: Tenant) -> None:
        self._service = service
        if not service.has_right(tenant, _SCOPE):  # it was revoked after this request was accepted
            raise ProvisionFailed("sandbox", "the token was revoked", "connect with another token")
        try:
            self._entry = service.sandboxes.add(
                lambda: service.make_sandbox(tenant, timeout=min(DEFAULT_TIMEOUT, service.settings.max_timeout)),
                tenant,
                tenant.lifetime,
                {"door": "mcp"},
            )
        except HttpError as error:  # inside an MCP response it has to be a SandboxError
            raise ProvisionFailed("sandbox", error.message, "end another session, or wait") from None
        self.sandbox = self._entry.sandbox
        self.max_timeout = int(service.settings.max_timeout)

    def call_slot(self) -> AbstractAsyncContextManager[object]:
        return self._service.run_slot(self._entry.tenant)

    async def end(self) -> None:
        await self._service.sandboxes.remove(self._entry)


class McpApp:
    """An ASGI application. The SDK is imported at the first request: most servers have no MCP clients."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._starting: asyncio.Task[StreamableHTTPSessionManager] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._calls, self._requests = set[object](), RequestsById()
        #: By tenant: requests without a session id.
        self._initializing: Counter[str] = Counter()
        service.on_close.append(self._aclose)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        body: bytes | None = None
        try:
            tenant = authenticate(request, _SCOPE)
            scope[OWNER], scope[HAS_RIGHT] = tenant.id, partial(self._service.has_right, tenant, _SCOPE)
            if scope["method"] == "POST":
                # Read before the SDK is called: it logs a client that leaves as an error.
                body = await check_mcp_message(await read_body(request, self._service.settings.max_body))
            manager = await self._manager()
            self._admit(request, tenant, manager)
            self._service.concurrency.enter(tenant, ends_something=scope["method"] == "DELETE")
            annotate_events(request, tenant)
        except (HttpError, SandboxError, ClientDisconnected) as error:
            request.app.state.bodies.release(scope)
            await error_response(error)(scope, receive, send)
            return
        call, scope[RESPONSE_END] = object(), asyncio.Event()
        if scope["method"] == "POST":
            self._calls.add(call)
        counted = [tenant.id] if _SESSION not in request.headers else []
        self._initializing.update(counted)

        async def send_counted(message: Any) -> None:
            """Release the reservation when the response starts: by then the SDK has registered the session."""
            self._initializing.subtract(counted)
            counted.clear()
            await send(message)

        try:
            if body is None:
                answering = manager.asgi_app(scope, receive, send_counted)
            else:
                answering = self._requests.call(manager.asgi_app, scope, body, request.receive, send_counted)
            await while_allowed(self._service.revocable(tenant, _SCOPE), answering)
        except HttpError:
            return  # the token was revoked: the connection is cut
        finally:
            scope[RESPONSE_END].set()
            request.app.state.bodies.release(scope)
            self._initializing.subtract(counted)
            self._calls.discard(call)
            self._service.concurrency.leave(tenant)

    def _admit(self, request: Request, tenant: Tenant, manager: StreamableHTTPSessionManager) -> None:
        """Set the user by which the SDK binds a session to the client that began it, and check the quota."""
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context
        from mcp.server.auth.provider import AccessToken

        user = AuthenticatedUser(AccessToken(token="", client_id=tenant.id, scopes=[]))
        if _SESSION not in request.headers:
            # Initialize requests in progress count too: the SDK registers a session only later.
            used = sum(owner == authorization_context(user) for owner in manager._session_owners.values())
            if used + self._initializing[tenant.id] >= tenant.sandboxes:
                message = f"this token already has {tenant.sandboxes} MCP sessions"
                raise HttpError(429, message, headers={"Retry-After": "5"})
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
            raise HttpError(501, "the package 'mcp' is not installed: pip install 'warmcell[mcp]'") from None
        service = self._service
        server = make_server(lambda context: TenantSandbox(service, context.request.scope[_TENANT]), is_http=True)
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
        """Run until the server drains and calls in progress are answered; idle streams would keep it open forever."""
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
    return [Route("/mcp", McpApp(service))]
