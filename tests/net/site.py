"""A static web server for the programs that the tests run."""

from __future__ import annotations

import functools
import http.server
import threading
from pathlib import Path

from warmcell.net.rules.fetch_policy import FetchPolicy


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        self.server.requests.append((self.requestline, dict(self.headers)))  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Site:
    """A static web server over a directory."""

    def __init__(self, root: Path, tls: object = None) -> None:
        self.root = root
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root)))
        self.server.requests = []  # type: ignore[attr-defined]
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)  # type: ignore[attr-defined]
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    @property
    def requests(self) -> list[tuple[str, dict[str, str]]]:
        return self.server.requests  # type: ignore[attr-defined, no-any-return]

    @property
    def policy(self) -> FetchPolicy:
        return FetchPolicy((f"site.test:{self.port}", f"127.0.0.1:{self.port}"))

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
