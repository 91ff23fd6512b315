"""Sandbox.fetch goes through the safe client and obeys its policy. Only this machine is ever contacted."""

from __future__ import annotations

import http.server
import importlib.util
import threading
from collections.abc import Iterator

import pytest
from tests.helpers import require
from tests.sandbox.fakes import Factory

from warmcell.core.errors import FetchFailed, SandboxDestroyed
from warmcell.sandbox.blocking import AsyncSandbox, Sandbox


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    require(importlib.util.find_spec("h11"), "the extra warmcell[net] is not installed")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_fetch_obeys_the_policy(port: int, factory: Factory) -> None:
    from warmcell.net import FetchPolicy, FetchRequest

    policy = FetchPolicy(allowed_domains=(f"127.0.0.1:{port}",), deny_private_ips=False)
    with Sandbox(fetch_policy=policy, guest_factory=factory) as sandbox:
        assert sandbox.fetch(f"http://127.0.0.1:{port}/").body == b"hello"
        assert sandbox.fetch(FetchRequest(f"http://127.0.0.1:{port}/x")).ok
        with pytest.raises(FetchFailed):
            sandbox.fetch(f"http://localhost:{port}/")
    with pytest.raises(SandboxDestroyed):
        sandbox.fetch(f"http://127.0.0.1:{port}/")


async def test_a_guest_fetches_with_json(port: int, factory: Factory) -> None:
    from warmcell.net import FetchPolicy

    policy = FetchPolicy(allowed_domains=(f"127.0.0.1:{port}",), deny_private_ips=False)
    async with AsyncSandbox(fetch_policy=policy, guest_factory=factory):
        fetch = factory.guest.config.fetch
        assert fetch is not None
        assert b'"status": 200' in await fetch(b'{"url": "http://127.0.0.1:%d/"}' % port)
        assert b'"error"' in await fetch(b'{"url": "http://example.org/"}')
