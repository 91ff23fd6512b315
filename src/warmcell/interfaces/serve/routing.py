"""Routes: every HTTP request passes `route`, which authenticates, counts and renders errors."""

from __future__ import annotations

import errno
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router

from warmcell.core.errors import SandboxError
from warmcell.core.light import on_error
from warmcell.interfaces.serve.authentication import ANONYMOUS, authenticate
from warmcell.interfaces.serve.middleware import FAULT, annotate_events, id_of
from warmcell.interfaces.serve.quotas import CountedResponse
from warmcell.interfaces.serve.requests import BUFFERED, ENDABLE, HAS_RIGHT, OWNER, REVOCABLE
from warmcell.interfaces.serve.responses import UNREAD, ClientDisconnected, HttpError, error_response
from warmcell.interfaces.serve.service import get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.descriptors import host_failure, is_exhaustion

_log = logging.getLogger("warmcell.serve")
#: None: an empty body, with the status 204.
Handler = Callable[[Request, Tenant], Awaitable[Response | None]]
ErrorRenderer = Callable[[Exception], Response]
#: Options of a route that answers with an empty body.
NO_CONTENT: dict[str, Any] = {"answers": ("nothing",), "status": 204}


class AuthRoute(Route):
    """A route with its OpenAPI description and its way of rendering errors."""

    description: dict[str, Any]
    render_error: ErrorRenderer
    ends_something: bool
    #: Clients present the secret of a sandbox instead of a token.
    has_own_secret: bool

    def matches_only(self, path: str) -> bool:
        """Whether the route has no path parameters and is at exactly this path."""
        return self.path == path and not self.param_convertors

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Skip Starlette's exception layer around each route: the endpoint renders its own errors."""
        if self.methods and scope["method"] not in self.methods:
            await super().handle(scope, receive, send)
            return
        request = Request(scope, receive, send)
        response = await self.endpoint(request)
        await response(scope, receive, send)


class AppRouter(Router):
    """Cache routes without path parameters, so that a known path does not search a hundred routes."""

    def __init__(self, routes: Sequence[BaseRoute], lifespan: Any) -> None:
        super().__init__(routes, redirect_slashes=False, lifespan=lifespan)
        self._known: dict[tuple[str, str], AuthRoute] = {}

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        key = scope.get("method", ""), scope.get("path", "")
        if (known := self._known.get(key)) is not None:
            scope.update(router=self, route=known, endpoint=known.endpoint, path_params={})
            await known.handle(scope, receive, send)
            return
        await super().app(scope, receive, send)
        found = scope.get("route")
        if isinstance(found, AuthRoute) and found.matches_only(key[1]) and key[0] in (found.methods or ()):
            self._known[key] = found


def route(
    method: str,
    path: str,
    handler: Handler,
    scope: str | None,
    render_error: ErrorRenderer = error_response,
    owner: Callable[[Request], Tenant | None] | None = None,
    *,
    ends_something: bool = False,
    **description: Any,
) -> AuthRoute:
    """Make a route for tenants with the scope, or for every client if `scope` is None.

    `owner` returns the tenant to charge where clients present another secret than a token. A route that
    `ends_something`, as every DELETE does, works even when the tenant has used up its concurrent requests.
    `description` is for `/openapi.json`.
    """
    ends_something = ends_something or method == "DELETE"

    async def endpoint(request: Request) -> Any:
        try:
            tenant, service = authenticate(request, scope), get_service(request)
            if owner is not None and (owning := owner(request)) is not None:
                tenant = owning
            if scope is None and tenant is not ANONYMOUS:  # with a scope, `authenticate` has counted it
                service.rates.take(tenant)
            request.scope[OWNER] = tenant.id
            reloads, request.scope[REVOCABLE] = service.reloads, service.revocable(tenant, scope)
            request.scope[HAS_RIGHT] = partial(service.has_right, tenant, scope)
            request.scope[UNREAD] = partial(service.concurrency.count_unread, tenant)
            request.scope[ENDABLE] = partial(service.open_requests.add, tenant.id, id_of(request.scope))
            annotate_events(request, tenant)
            response = await _call_counted(request, tenant, handler, ends_something)
            if service.reloads != reloads:  # what it made may be a revoked token's
                service.run_in_background(service.end_revoked())
            return response
        except (HttpError, ClientDisconnected, SandboxError) as error:
            request.scope[FAULT] = getattr(error, "fault", None)
            return render_error(error)
        except Exception as error:
            if isinstance(error, OSError) and (is_exhaustion(error) or error.errno in (errno.ENOSPC, errno.EDQUOT)):
                request.scope[FAULT] = "host"
                return render_error(host_failure(OSError(error.errno, error.strerror), "handle the request"))
            # An unexpected exception may contain anything from the host: log it, and send only its type.
            _log.exception("a request failed with an internal error")
            return render_error(HttpError(500, f"internal server error ({type(error).__name__})"))
        finally:
            if BUFFERED in request.scope:
                request.app.state.bodies.release(request.scope)

    made = AuthRoute(path, endpoint, methods=[method])
    if description.get("answers") == ("events",):
        made.methods = {method}  # Starlette adds HEAD, and the HEAD of an endless stream would never end
    made.ends_something, made.has_own_secret = ends_something, owner is not None
    made.render_error = getattr(handler, "render_error", render_error)
    # The docstring of an object is its class's, which does not describe the request.
    summary = (handler if inspect.isroutine(handler) else type(handler).__call__).__doc__ or ""
    made.description = {"scope": scope, "summary": summary.strip().partition("\n")[0], **description}
    return made


def is_ending(request: Request, route: AuthRoute | None) -> bool:
    """As `route` says, and for requests of no route, to `/mcp`, every DELETE."""
    return request.scope["method"] == "DELETE" if route is None else route.ends_something


async def _call_counted(request: Request, tenant: Tenant, handler: Handler, ends_something: bool) -> Any:
    if tenant is ANONYMOUS:
        return await handler(request, tenant) or Response(status_code=204)
    concurrency = get_service(request).concurrency
    concurrency.enter(tenant, ends_something=ends_something)
    with on_error(lambda: concurrency.leave(tenant)):
        response = await handler(request, tenant) or Response(status_code=204)
    keeps_body = BUFFERED in request.scope and getattr(response, "keeps_body", False)
    release_body = request.app.state.bodies.keep(request.scope) if keeps_body else None

    def leave() -> None:
        concurrency.leave(tenant)
        if release_body is not None:
            release_body()

    return CountedResponse(response, leave)


async def render_404(request: Request, error: Exception) -> Response:
    return error_response(HttpError(404, "not found"))


async def render_405(request: Request, error: Exception) -> Response:
    """List the methods of all routes at this path in `Allow`."""
    allowed = set[str]()
    for candidate in request.app.routes:
        if isinstance(candidate, AuthRoute) and candidate.path_regex.match(request.scope["path"]):
            allowed |= candidate.methods or set()
    return error_response(HttpError(405, "method not allowed", headers={"Allow": ", ".join(sorted(allowed))}))
