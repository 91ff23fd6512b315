"""`/`: the page built by `scripts/build-page`, with headers that only let it talk to this server."""

from __future__ import annotations

import gzip
import re
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.middleware import path_prefix
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.service import get_service
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
#: Nothing inline, nothing from other origins. Only `frame.html` may be framed. Images of guests are data URLs.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: The frame shows a guest's HTML: opaque origin, a single script allowed by its hash, no requests.
_FRAME_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'sha256-{hash}'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_ABSOLUTE = re.compile(rb"""(["'`(])/(v1|page|healthz)(?=[/"'`?])""")
_COMMON_HEADERS = {
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "X-DNS-Prefetch-Control": "off",
}


async def page(request: Request, tenant: Tenant) -> Response:
    return _send_file(request, "index.html")


async def asset(request: Request, tenant: Tenant) -> Response:
    return _send_file(request, str(request.path_params["name"]))


def _send_file(request: Request, name: str) -> Response:
    prefix = path_prefix(get_service(request).settings.public_url)
    # The name is looked up in a fixed set: the path of a request never reaches open().
    if name not in _names():
        raise HttpError(404, "not found")
    headers = {**_COMMON_HEADERS, "Content-Type": _KINDS[Path(name).suffix], "Content-Security-Policy": _policy(name)}
    has_hash_in_name = Path(name).suffix not in (".html", ".txt")
    headers["Cache-Control"] = "public, max-age=31536000, immutable" if has_hash_in_name else "no-cache"
    headers["Vary"] = "Accept-Encoding"
    if "gzip" in request.headers.get("accept-encoding", "") and not name.endswith(".woff2"):
        return Response(_gzip(name, prefix), headers=headers | {"Content-Encoding": "gzip"})
    return Response(_content(name, prefix), headers=headers)


@cache
def _names() -> frozenset[str]:
    return frozenset(path.name for path in _FILES.iterdir() if path.suffix in _KINDS)


@cache
def _content(name: str, prefix: str = "") -> bytes:
    """The file, with the prefix of `--public-url` before all absolute paths of this server."""
    data = (_FILES / name).read_bytes()
    if not prefix or Path(name).suffix not in (".html", ".js", ".css"):
        return data
    return _ABSOLUTE.sub(rb"\1" + prefix.encode() + rb"/\2", data)


@cache
def _gzip(name: str, prefix: str) -> bytes:
    return gzip.compress(_content(name, prefix), 9, mtime=0)


@cache
def _policy(name: str) -> str:
    if name != "frame.html":
        return _PAGE_POLICY
    from base64 import b64encode
    from hashlib import sha256

    script = _content(name).split(b"<script>")[1].split(b"</script>")[0]
    return _FRAME_POLICY.format(hash=b64encode(sha256(script).digest()).decode())


def routes() -> list[Any]:
    return [route("GET", "/", page, None), route("GET", "/page/{name}", asset, None)]
