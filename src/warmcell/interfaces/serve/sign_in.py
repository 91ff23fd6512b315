"""How a browser that the command opened gets its token: by a code that works once and soon.

The address that a browser is started with can be read by every user of this machine, in the list of processes: it must
not be the token.
"""

from __future__ import annotations

import hmac
import secrets
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.exchange import Refused, answer, read_model
from warmcell.interfaces.serve.service import Service, service_of
from warmcell.interfaces.serve.settings import Settings, is_loopback
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import SignInBody

CODE_SECONDS = 120
_MOST_BODY = 4096


def new_code() -> str:
    """Until when it works, and 256 random bits."""
    return f"{int(time.time()) + CODE_SECONDS}-{secrets.token_urlsafe(32)}"


def address_to_open(settings: Settings, url: str) -> str:
    """With the code where there is one token for everybody and nobody else can listen on the way to this machine."""
    if not is_loopback(settings.host):
        return f"http://127.0.0.1:{url.rpartition(':')[2]}/" if settings.host == "0.0.0.0" else url
    return url if settings.token is None else f"{url}/#code={settings.code}"


def redeemed(service: Service, presented: str) -> str:
    """The token, once at most."""
    code, token = service.settings.code, service.settings.token
    is_right = hmac.compare_digest(presented.encode("utf-8", "replace"), (code or "").encode())
    if code is None or token is None or not is_right or service.extras.get("code_was_used"):
        raise Refused(403, "this code is not known, or was used already")
    if time.time() > int(code.partition("-")[0]):
        raise Refused(403, "this code is too old")
    service.extras["code_was_used"] = True
    return token


async def sign_in(request: Request, tenant: Tenant) -> Response:
    """The token, for the code that `warmcell serve --open` gave to the browser."""
    body = await read_model(request, SignInBody, _MOST_BODY)
    return answer({"token": redeemed(service_of(request), body.code)}, headers={"Cache-Control": "no-store"})


def routes() -> list[Any]:
    return [door("POST", "/v1/sign-in", sign_in, None, body=SignInBody, answers=("Token",))]
