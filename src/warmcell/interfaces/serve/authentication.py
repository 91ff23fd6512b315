"""Authentication: find the token of a request and the tenant that it belongs to."""

from __future__ import annotations

from base64 import b64decode

from starlette.requests import HTTPConnection

from warmcell.interfaces.serve.responses import HttpError, shutting_down
from warmcell.interfaces.serve.service import get_service
from warmcell.interfaces.serve.tokens import Tenant

#: The subprotocol of our WebSockets, and the prefix of one that carries a token in base64url.
SUBPROTOCOL = "warmcell"
_BEARER = "warmcell.bearer."
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="warmcell"'}
#: The tenant of requests that need no token and bring none.
ANONYMOUS = Tenant("", "anonymous", "0" * 64, scopes=())


def authenticate(request: HTTPConnection, scope: str | None) -> Tenant:
    """Return the tenant. Raises `HttpError`: 401 for an unknown token, 403 for a token without the scope.

    With `scope=None` any client is allowed; one without a valid token is `ANONYMOUS`.
    """
    service = get_service(request)
    if service.is_draining and scope is not None:
        raise shutting_down()
    token = find_token(request)
    tenant = service.tenant(token)
    if scope is None:
        return tenant or ANONYMOUS
    if tenant is None:
        raise token_required(is_given=bool(token))
    if scope not in tenant.scopes:
        raise HttpError(403, f"the token does not have the scope {scope!r}")
    service.rates.take(tenant)
    return tenant


def token_required(is_given: bool = False) -> HttpError:
    missing = "a token is required, as 'Authorization: Bearer TOKEN'"
    return HttpError(401, "unknown or revoked token" if is_given else missing, headers=_CHALLENGE)


def find_token(request: HTTPConnection) -> str | None:
    """Look in `X-API-KEY`, in `Authorization: Bearer`, and in the password of a URL (Basic authentication).

    E2B's SDKs send their key in the first one, and may send a token of E2B's own in the second one. Browsers cannot set
    headers on a WebSocket, so a subprotocol may carry the token there.
    """
    if key := request.headers.get("x-api-key"):
        return key
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        return (_decode(value) or "").partition(":")[2] or None
    for name in request.scope.get("subprotocols", ()):
        if name.startswith(_BEARER):
            encoded = name.removeprefix(_BEARER).replace("-", "+").replace("_", "/")
            return _decode(encoded + "=" * (-len(encoded) % 4))
    return None


def _decode(text: str) -> str | None:
    try:
        return b64decode(text, validate=True).decode()
    except ValueError:
        return None
