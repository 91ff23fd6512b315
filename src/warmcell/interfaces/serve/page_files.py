"""`/`: the page, as `scripts/build-page` made it, under headers that let it do nothing but talk to this server."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.exchange import Refused
from warmcell.interfaces.serve.tokens import Tenant

_FILES = Path(__file__).with_name("page")
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
#: Nothing inline and nothing from elsewhere. Frames are for `frame.html` alone, and whatever it is made to show can
#: take them nowhere else. Pictures of guests are data, never markup.
_OF_THE_PAGE = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: What shows a guest's HTML: in an origin that is nobody's, with one script, ours, by its hash; no request leaves it.
_OF_THE_FRAME = (
    "sandbox allow-scripts; default-src 'none'; script-src 'sha256-{hash}'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_ALWAYS = {
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "X-DNS-Prefetch-Control": "off",
}


async def page(request: Request, tenant: Tenant) -> Response:
    """The page."""
    return _sent(request, "index.html")


async def asset(request: Request, tenant: Tenant) -> Response:
    """A part of the page."""
    return _sent(request, str(request.path_params["name"]))


def _sent(request: Request, name: str) -> Response:
    # Looked up, never opened by what a request says.
    if name not in _names():
        raise Refused(404, "there is nothing here")
    headers = {**_ALWAYS, "Content-Type": _KINDS[Path(name).suffix], "Content-Security-Policy": _rules(name)}
    is_named_by_hash = Path(name).suffix not in (".html", ".txt")
    headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_named_by_hash else "no-cache"
    headers["Vary"] = "Accept-Encoding"
    if "gzip" in request.headers.get("accept-encoding", "") and not name.endswith(".woff2"):
        return Response(_packed(name), headers=headers | {"Content-Encoding": "gzip"})
    return Response(_content(name), headers=headers)


@cache
def _names() -> frozenset[str]:
    return frozenset(path.name for path in _FILES.iterdir() if path.suffix in _KINDS)


@cache
def _content(name: str) -> bytes:
    return (_FILES / name).read_bytes()


@cache
def _packed(name: str) -> bytes:
    return gzip.compress(_content(name), 9, mtime=0)


@cache
def _rules(name: str) -> str:
    if name != "frame.html":
        return _OF_THE_PAGE
    from base64 import b64encode
    from hashlib import sha256

    script = _content(name).split(b"<script>")[1].split(b"</script>")[0]
    return _OF_THE_FRAME.format(hash=b64encode(sha256(script).digest()).decode())


def routes() -> list[Any]:
    return [door("GET", "/", page, None), door("GET", "/page/{name}", asset, None)]
