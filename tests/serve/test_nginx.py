"""The server behind a real nginx with `deploy/nginx/warmcell.conf`: TLS, streams, WebSockets, uploads, E2B's hosts."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import require, reserve_port, until
from tests.serve.conftest import ROOT, Server, await_workers
from tests.serve.requests import Box, asset_of, make_certificate, stream_events
from websockets.sync.client import connect

Start = Callable[..., AbstractContextManager[Server]]
NAME = "sandboxes.example.org"
PUBLIC = f"https://{NAME}"
#: A client's address that is not the proxy's.
CLIENT = "127.0.0.2"
OUTER = """
daemon off; pid {at}/pid; error_log {at}/error.log; events {{}}
http {{
    access_log off; client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;
    fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
    include {at}/warmcell.conf;
}}
"""


class Nginx:
    """A running nginx. `client(host)` connects to it under that name."""

    def __init__(self, server: Server, port: int, audit: Path) -> None:
        self.server, self.port, self.audit = server, port, audit
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE

    def client(self, host: str = NAME) -> httpx.Client:
        transport = httpx.HTTPTransport(verify=self.context, local_address=CLIENT)
        return _NamedClient(host, base_url=f"https://127.0.0.1:{self.port}", transport=transport, timeout=60)


class _NamedClient(httpx.Client):
    """Sends the name in TLS and in the Host header, without DNS."""

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(headers={"host": host}, **options)
        self._name = host

    def build_request(self, *arguments: Any, **options: Any) -> httpx.Request:
        options["extensions"] = {**(options.get("extensions") or {}), "sni_hostname": self._name}
        return super().build_request(*arguments, **options)


def find_nginx() -> str:
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    require(found, "nginx is not installed")
    assert found is not None
    return found


@contextmanager
def run_nginx(directory: Path, server: Server) -> Iterator[int]:
    """The configuration as it is in `deploy/`, with other ports and certificates."""
    make_certificate(directory, NAME)
    with reserve_port() as port:
        yield from _run_nginx_on(port, directory, server)


def _run_nginx_on(port: int, directory: Path, server: Server) -> Iterator[int]:
    conf = (ROOT / "deploy/nginx/warmcell.conf").read_text()
    upstream = httpx.URL(server.url)
    for old, new in {
        "127.0.0.1:8000": f"{upstream.host}:{upstream.port}",
        "listen 443": f"listen 127.0.0.1:{port}",
        "/etc/nginx/warmcell": str(directory),
    }.items():
        assert old in conf
        conf = conf.replace(old, new)
    (directory / "warmcell.conf").write_text(conf)
    (directory / "nginx.conf").write_text(OUTER.format(at=directory))
    command = [find_nginx(), "-p", f"{directory}", "-c", f"{directory}/nginx.conf", "-e", f"{directory}/error.log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as nginx:
        try:
            until(lambda: _is_listening(port) or nginx.poll() is not None)
            assert nginx.poll() is None, nginx.communicate()[0]
            yield port
        finally:
            nginx.terminate()


def _is_listening(port: int) -> bool:
    with closing(socket.socket()) as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module", params=["1", "2"], ids=["one process", "two workers"])
def nginx(start_server: Start, tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[Nginx]:
    find_nginx()
    directory = tmp_path_factory.mktemp("nginx")
    audit = directory / "audit.jsonl"
    options = ("--public-url", PUBLIC, "--trusted-proxy", "127.0.0.1", "--audit", str(audit))
    with start_server(*options, "--workers", request.param) as server, run_nginx(directory, server) as port:
        await_workers(server)
        yield Nginx(server, port, audit)


def test_the_page_and_its_assets(nginx: Nginx) -> None:
    browser = {"origin": PUBLIC, "sec-fetch-site": "same-origin"}
    with nginx.client() as client:
        for path in ("/", "/healthz", asset_of(nginx.server)):
            assert client.get(path, headers=browser).status_code == 200, path
        assert client.get("/", headers={"origin": "https://evil.example.org"}).status_code == 403
    until(lambda: f'"client": "{CLIENT}"' in nginx.audit.read_text())


def test_events_arrive_when_they_happen_and_a_run_ends_with_its_client(nginx: Nginx) -> None:
    code = "import time; print('first', flush=True); time.sleep(300)"
    body = {"language": "python", "code": code, "timeout": 300}
    with nginx.client() as client:
        with stream_events(client, "POST", "/v1/run", json=body) as events:
            assert next(events)[1]["text"] == "first\n"  # a buffering proxy would keep it for 300 s
        until(lambda: not client.get("/v1/activity").json()["runs"])


def test_a_websocket(nginx: Nginx) -> None:
    run = '{"language": "python", "code": "print(input()[::-1])", "timeout": 60}'
    options: dict[str, Any] = {"ssl": nginx.context, "server_hostname": NAME, "proxy": None}
    with (
        socket.create_connection(("127.0.0.1", nginx.port)) as plain,
        connect(f"wss://{NAME}/v1/run/ws", sock=plain, origin=PUBLIC, open_timeout=30, **options) as opened,
    ):
        opened.send(run)
        opened.send(b"abc\n")
        while b"cba" not in (message := opened.recv(timeout=60)):  # type: ignore[operator]
            assert isinstance(message, bytes), message


def test_e2bs_clients_name_the_sandbox_in_the_host(nginx: Nginx) -> None:
    content = os.urandom(24 << 20)
    with nginx.client(f"api.{NAME}") as api:
        box = Box(api)
        secret = {"x-access-token": box.headers["x-access-token"]}
        with nginx.client(f"49983-{box.id}.{NAME}") as files:
            binary = secret | {"content-type": "application/octet-stream"}
            assert files.post("/files?path=a", content=content, headers=binary).status_code == 200
            assert files.get("/files?path=a", headers=secret).content == content
            box.client, box.headers = files, secret
            assert box.run("wc -c < a") == (0, f"{len(content)}\n", "")
        with nginx.client(f"49999-{box.id}.{NAME}") as cells:
            assert '"text": "42"' in cells.post("/execute", json={"code": "6 * 7"}, headers=secret).text
        with nginx.client(f"8000-{box.id}.{NAME}") as port:
            assert port.get("/healthz").status_code == 404
        assert api.delete(f"/sandboxes/{box.id}", headers=box.key).status_code == 204
