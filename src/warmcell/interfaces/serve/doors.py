"""Every request comes in through here: who asks, from where, and may they? No route is made in any other way."""

from __future__ import annotations

import hmac
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.exchange import OWNER, TAKEN, ClientGone, Refused, refusal
from warmcell.interfaces.serve.rates import CountedAnswer
from warmcell.interfaces.serve.service import service_of
from warmcell.interfaces.serve.settings import Settings, is_loopback
from warmcell.interfaces.serve.tokens import Tenant

_log = logging.getLogger("warmcell.serve")
Handler = Callable[[Request, Tenant], Awaitable[Response]]
Rendering = Callable[[Exception], Response]
#: Of a route that has nothing to say when it succeeds.
NOTHING: dict[str, Any] = {"answers": ("nothing",), "status": 204}
#: Of our WebSockets; and what a token in base64url follows.
SUBPROTOCOL = "warmcell"
_BEARER = "warmcell.bearer."
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="warmcell"'}


class Door(Route):
    """A route that knows what it says of itself, and how it says that it failed."""

    described: dict[str, Any]
    refuse: Rendering
    ends_something: bool

    def is_only_at(self, path: str) -> bool:
        """No client makes up another path for it, not even one with our own braces in it."""
        return self.path == path and not self.param_convertors

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Without Starlette's own layer around each route: a door renders what goes wrong behind it itself."""
        if self.methods and scope["method"] not in self.methods:
            await super().handle(scope, receive, send)
            return
        request = Request(scope, receive, send)
        response = await self.endpoint(request)
        await response(scope, receive, send)


class Doors(Router):
    """Finds what has a path without parts to fill in at once, from the second time on: there are a hundred routes."""

    def __init__(self, routes: Sequence[BaseRoute], lifespan: Any) -> None:
        super().__init__(routes, redirect_slashes=False, lifespan=lifespan)
        self._known: dict[tuple[str, str], Door] = {}

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        asked = scope.get("method", ""), scope.get("path", "")
        if (known := self._known.get(asked)) is not None:
            scope.update(router=self, route=known, endpoint=known.endpoint, path_params={})
            await known.handle(scope, receive, send)
            return
        await super().app(scope, receive, send)
        found = scope.get("route")
        if isinstance(found, Door) and found.is_only_at(asked[1]) and asked[0] in (found.methods or ()):
            self._known[asked] = found


def door(
    method: str,
    path: str,
    handler: Handler,
    scope: str | None,
    refuse: Rendering = refusal,
    owner: Callable[[Request], Tenant | None] | None = None,
    *,
    ends_something: bool = False,
    **described: Any,
) -> Door:
    """A route for whoever has the scope; None: for everybody. `refuse` renders what is not a success.

    `owner`: for whom it counts where clients bring another secret than a token. What `ends_something`, as every DELETE
    does, is done also for tenants whose requests under way are as many as they may be. `described` is for
    `/openapi.json`.
    """
    ends_something = ends_something or method == "DELETE"

    async def endpoint(request: Request) -> Any:
        try:
            tenant = admitted(request, scope)
            if owner is not None and (owning := owner(request)) is not None:
                tenant = owning
                service_of(request).rates.take(tenant)
            request.scope[OWNER] = tenant.id
            return await _counted(request, tenant, handler, ends_something)
        except (Refused, ClientGone, SandboxError) as error:
            return refuse(error)
        except Exception as error:
            # An exception that we did not foresee may hold anything of the host: the log gets it, the client its kind.
            _log.exception("a request failed inside")
            return refuse(Refused(500, f"the server failed inside ({type(error).__name__})"))
        finally:
            if TAKEN in request.scope:
                request.app.state.bodies.leave(request.scope)

    route = Door(path, endpoint, methods=[method])
    if described.get("answers") == ("events",):
        route.methods = {method}  # a HEAD of what has no end would have none either
    route.ends_something = ends_something
    route.refuse = getattr(handler, "refuse", refuse)
    summary = handler.__doc__ or type(handler).__call__.__doc__ or ""
    route.described = {"scope": scope, "summary": summary.strip().partition("\n")[0], **described}
    return route


async def _counted(request: Request, tenant: Tenant, handler: Handler, ends_something: bool) -> Any:
    if tenant is _NOBODY:  # their protocol asks for another secret than a token
        return await handler(request, tenant)
    under_way = service_of(request).under_way
    under_way.enter(tenant, ends_something=ends_something)
    try:
        response = await handler(request, tenant)
    except BaseException:
        under_way.leave(tenant)
        raise
    return CountedAnswer(response, lambda: under_way.leave(tenant))


def admitted(request: HTTPConnection, scope: str | None) -> Tenant:
    """The tenant, or `Refused` with 401 for nobody's token and 403 for one that may not do this."""
    service = service_of(request)
    if service.is_draining and scope is not None:
        raise Refused(503, "the server is about to end", headers={"Retry-After": "5"})
    tenant = service.tenant(presented_token(request))
    if scope is None:
        return tenant or _NOBODY
    if tenant is None:
        raise Refused(401, "a token is needed, as 'Authorization: Bearer TOKEN'", headers=_CHALLENGE)
    if scope not in tenant.scopes:
        raise Refused(403, f"this token has no scope {scope!r}")
    service.rates.take(tenant)
    return tenant


_NOBODY = Tenant("", "nobody", "0" * 64, scopes=())


def presented_token(request: HTTPConnection) -> str | None:
    """By `Authorization: Bearer`, by `X-API-KEY`, or as the password of a URL, for clients that know only a URL.

    Also as a subprotocol of a WebSocket, to which browsers let a page add no header.
    """
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    key = request.headers.get("x-api-key")
    if key is not None:
        return key
    if kind.lower() == "basic":
        return (_decoded(value) or "").partition(":")[2] or None
    for name in request.scope.get("subprotocols", ()):
        if name.startswith(_BEARER):
            encoded = name.removeprefix(_BEARER).replace("-", "+").replace("_", "/")
            return _decoded(encoded + "=" * (-len(encoded) % 4))
    return None


def _decoded(text: str) -> str | None:
    try:
        return b64decode(text, validate=True).decode()
    except ValueError:
        return None


class FromElsewhere:
    """Turns away what a web page of somebody else sends: its browser can reach loopback, and knows many names for it.

    Around the whole application, so that no answer of any kind is for such a page.
    """

    def __init__(self, app: Any, settings: Settings) -> None:
        self._app = app
        self._only_local = is_loopback(settings.host)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket"):
            problem = self._problem(scope)
            if problem is not None:
                await refusal(Refused(403, problem))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, scope: Any) -> str | None:
        said = _first_of_each(scope["headers"])
        host, origin = said.get(b"host", b""), said.get(b"origin")
        if self._only_local and not _names_loopback(host.decode("latin-1")):
            return "the Host header names another machine"
        scheme = scope.get("scheme", "http").replace("ws", "http").encode()
        if origin is not None and not hmac.compare_digest(origin, scheme + b"://" + host):
            return "requests of other origins are not answered"
        if said.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            return "requests of other sites are not answered"
        return None


def _first_of_each(headers: Any) -> dict[bytes, bytes]:
    """By name: where there are several, what Starlette's own `Headers` shows."""
    return dict(reversed(headers))


class Unframed:
    """No answer is guessed to be of another kind than it says, nor shown inside anybody's page, nor run as one.

    A guest may have written what we answer. What needs more room than this brings rules of its own (`page_files`).
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                said = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(rule for rule in _NOTHING if rule[0] not in said)]
            await send(message)

        await self._app(scope, receive, sent if scope["type"] == "http" else send)


_NOTHING = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
)


def _names_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.lower() in ("localhost", "[::1]") or (name.startswith("127.") and is_address(name))


def is_address(name: str) -> bool:
    parts = name.split(".")
    return len(parts) == 4 and all(part.isascii() and part.isdigit() and int(part) < 256 for part in parts if part)


async def not_found(request: Request, error: Exception) -> Response:
    return refusal(Refused(404, "there is nothing here"))


async def wrong_method(request: Request, error: Exception) -> Response:
    """With all that is done at this path, be it by several routes."""
    scope, found = request.scope, set[str]()
    for route in request.app.routes:
        if isinstance(route, Door) and route.path_regex.match(scope["path"]):
            found |= route.methods or set()
    allowed = {"Allow": ", ".join(sorted(found))}
    return refusal(Refused(405, "this is not done here by that method", headers=allowed))
