"""A registry on loopback: tokens, ranges, redirects, and whatever a test makes it do wrong."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.images.image_files import MANIFEST, Layout, digest_of

TOKEN = "token-of-the-test"


class RegistryServer(ThreadingHTTPServer):
    """`answers` maps a path to (status, headers, body), and comes before everything else."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.change: Callable[[bytes], bytes] = lambda body: body
        self.credentials: tuple[str, str] | None = None
        self.needs_token = self.has_basic = self.ignores_ranges = False
        self.failures = 0
        self.requests: list[tuple[str, str | None, str | None]] = []

    def publish(self, layout: Layout, tag: str) -> str:
        described = layout.add_json(layout.manifest, MANIFEST)
        self.blobs |= layout.blobs
        for name in (tag, described["digest"]):
            self.manifests[name] = (MANIFEST, layout.blobs[described["digest"]])
        return str(described["digest"])

    def publish_json(self, layout: Layout, document: object, media_type: str, tag: str) -> str:
        described = layout.add_json(document, media_type)
        for name in (tag, described["digest"]):
            self.manifests[name] = (media_type, layout.blobs[described["digest"]])
        return str(described["digest"])

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.requests]


class _Handler(BaseHTTPRequestHandler):
    server: RegistryServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        state, parts = self.server, urlsplit(self.path)
        authorization = self.headers.get("Authorization")
        state.requests.append((self.path, authorization, self.headers.get("Range")))
        if state.failures > 0:
            state.failures -= 1
            self.send(503)
        elif parts.path in state.answers:
            self.send(*state.answers[parts.path])
        elif parts.path == "/token":
            self.send_token(parse_qs(parts.query), authorization)
        elif self.is_denied(authorization):
            kind = "Basic" if state.has_basic else f'Bearer realm="http://{state.host}/token",service="test"'
            self.send(401, {"WWW-Authenticate": kind})
        else:
            self.send_content(parts.path)

    def is_denied(self, authorization: str | None) -> bool:
        state = self.server
        if state.has_basic:
            return authorization != basic(state.credentials)
        return state.needs_token and authorization != f"Bearer {TOKEN}"

    def send_token(self, query: dict[str, list[str]], authorization: str | None) -> None:
        wanted = basic(self.server.credentials)
        if query.get("scope") != ["repository:team/app:pull"] or query.get("service") != ["test"]:
            self.send(400)
        elif wanted is not None and authorization != wanted:
            self.send(401)
        else:
            self.send(200, {"Content-Type": "application/json"}, b'{"access_token": "%s"}' % TOKEN.encode())

    def send_content(self, path: str) -> None:
        _, _, rest = path.partition("/v2/team/app/")
        kind, _, name = rest.partition("/")
        if kind == "manifests" and name in self.server.manifests:
            media_type, body = self.server.manifests[name]
            self.send(
                200, {"Content-Type": media_type, "Docker-Content-Digest": digest_of(body)}, self.server.change(body)
            )
        elif kind == "blobs" and name in self.server.blobs:
            self.send_blob(self.server.change(self.server.blobs[name]))
        else:
            self.send(404)

    def send_blob(self, body: bytes) -> None:
        asked = self.headers.get("Range", "")
        if self.server.ignores_ranges or not asked:
            self.send(200, {}, body)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        self.send(206, {}, body[int(first) : int(last) + 1])

    def send(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def basic(credentials: tuple[str, str] | None) -> str | None:
    return None if credentials is None else "Basic " + base64.b64encode(":".join(credentials).encode()).decode()


@contextmanager
def run_registry() -> Iterator[RegistryServer]:
    server = RegistryServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
