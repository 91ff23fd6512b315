"""Sign-in for the browser that `warmcell serve --open` starts: it exchanges a one-time code for the token.

Every user of the machine can read the browser's arguments in the process list, so the URL must not contain the token.
"""

from __future__ import annotations

import hmac
import secrets
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.authentication import ANONYMOUS, token_required
from warmcell.interfaces.serve.requests import read_model
from warmcell.interfaces.serve.responses import HttpError, json_response
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.service import Service, get_service
from warmcell.interfaces.serve.settings import Settings, is_loopback
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import SignInBody

CODE_SECONDS = 120
_MAX_BODY = 4096


def new_code() -> str:
    """The expiry time and 256 random bits."""
    return f"{int(time.time()) + CODE_SECONDS}-{secrets.token_urlsafe(32)}"


def address_to_open(settings: Settings, url: str) -> str:
    """The URL with the code if there is a single token and the server listens on loopback only."""
    if not is_loopback(settings.host):
        return f"http://127.0.0.1:{url.rpartition(':')[2]}/" if settings.host == "0.0.0.0" else url
    return url if settings.token is None else f"{url}/#code={settings.code}"


def redeem_code(service: Service, presented: str) -> str:
    """Return the token for the code, once."""
    code, token = service.settings.code, service.settings.token
    is_right = hmac.compare_digest(presented.encode("utf-8", "replace"), (code or "").encode())
    if code is None or token is None or not is_right or service.sign_in_code_used:
        raise HttpError(403, "unknown code, or already used")
    if time.time() > int(code.partition("-")[0]):
        raise HttpError(403, "the code has expired")
    service.sign_in_code_used = True
    return token


async def sign_in(request: Request, tenant: Tenant) -> Response:
    """Exchanges the code of `warmcell serve --open` for the token."""
    body = await read_model(request, SignInBody, _MAX_BODY)
    return json_response({"token": redeem_code(get_service(request), body.code)}, headers={"Cache-Control": "no-store"})


async def identity(request: Request, tenant: Tenant) -> Response:
    """The tenant of the token and what it may do."""
    if tenant is ANONYMOUS:
        raise token_required()
    settings = get_service(request).settings
    return json_response(
        {
            "id": tenant.id,
            "name": tenant.name,
            "scopes": list(tenant.scopes),
            "requires_token": not settings.is_open,
            "has_audit": settings.audit is not None,
        }
    )


def routes() -> list[Any]:
    return [
        route("POST", "/v1/sign-in", sign_in, None, body=SignInBody, answers=("Token",)),
        route("GET", "/v1/identity", identity, None, answers=("Identity",)),
    ]
