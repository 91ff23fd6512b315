"""The server behind a proxy: public URL, path prefix, forwarded headers; and TLS of its own."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
from tests.helpers import until
from tests.serve.conftest import Server
from tests.serve.requests import asset_of, make_certificate

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.middleware import check_public_url, parse_networks

Start = Callable[..., AbstractContextManager[Server]]
PUBLIC = "https://sandboxes.example.org"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_browsers_at_the_public_url_are_answered(start_server: Start, workers: str) -> None:
    """As nginx sends them: with its own Host and with the browser's, with and without X-Forwarded-Proto."""
    with start_server("--public-url", PUBLIC, "--workers", workers) as server:
        for host in (None, "sandboxes.example.org"):
            for scheme in (None, "https"):
                headers = {"origin": PUBLIC, "sec-fetch-site": "same-origin"}
                headers |= {"host": host} if host else {}
                headers |= {"x-forwarded-proto": scheme} if scheme else {}
                for path in ("/", "/healthz", asset_of(server)):
                    assert server.client.get(path, headers=headers).status_code == 200, (path, headers)
        for wrong in (
            {"origin": "https://evil.example.org"},
            {"host": "evil.example.org"},
            {"origin": "http://sandboxes.example.org"},
            {"origin": PUBLIC, "sec-fetch-site": "cross-site"},
        ):
            assert server.client.get("/healthz", headers=wrong).status_code == 403, wrong


def test_a_path_prefix_is_removed_and_put_before_the_pages_own_paths(start_server: Start) -> None:
    with start_server("--public-url", "https://example.org/box") as server:
        asset = asset_of(server, "/box")
        assert asset.startswith("/box/page/")
        script = server.client.get(asset).text
        assert "/box/v1/" in script and not re.search(r"""["'`]/v1/""", script)
        assert server.client.get("/box/healthz").json() == server.client.get("/healthz").json()
        assert server.client.get("/boxhealthz").status_code == 404


@pytest.mark.parametrize(
    ("options", "client"),
    [
        ((), "127.0.0.1"),
        (("--trusted-proxy", "127.0.0.0/8"), "203.0.113.7"),
        (("--trusted-proxy", "10.0.0.1"), "127.0.0.1"),
        (("--workers", "2"), "127.0.0.1"),
        (("--trusted-proxy", "127.0.0.0/8", "--workers", "2"), "203.0.113.7"),
    ],
)
def test_only_trusted_proxies_name_the_client(
    start_server: Start, tmp_path: Path, options: tuple[str, ...], client: str
) -> None:
    audit = tmp_path / "audit.jsonl"
    with start_server("--audit", str(audit), *options) as server:
        forwarded = {"x-forwarded-for": "198.51.100.1, 203.0.113.7, 127.0.0.2", "x-warmcell-client": "192.0.2.1"}
        for path in ("/healthz", "/v1/sandboxes", "/metrics"):  # of any worker, of one of them, of all
            server.client.get(path, headers=forwarded)
        until(lambda: audit.read_text().count(f'"client": "{client}"') >= 3)


def test_a_client_cannot_name_itself_in_a_line_before_the_proxys(start_server: Start, tmp_path: Path) -> None:
    """HAProxy and others leave the client's line as it is, and add their own after it."""
    audit = tmp_path / "audit.jsonl"
    with start_server("--audit", str(audit), "--trusted-proxy", "127.0.0.0/8") as server:
        lines = [("x-forwarded-for", "198.51.100.1"), ("x-forwarded-for", "203.0.113.7")]
        server.client.get("/healthz", headers=lines)
        until(lambda: '"client": "203.0.113.7"' in audit.read_text())
        assert "198.51.100.1" not in audit.read_text()


def test_forwarded_https_is_the_origin_of_the_page(start_server: Start) -> None:
    headers = {"origin": "https://localhost:9", "host": "localhost:9", "x-forwarded-proto": "https"}
    with start_server() as server:
        assert server.client.get("/healthz", headers=headers).status_code == 403
    with start_server("--trusted-proxy", "127.0.0.1", "--workers", "2") as server:
        assert server.client.get("/healthz", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "url", ["example.org", "ftp://example.org", "https://", "https://a/?b", "https://u@a/", "https://[", "https://[1/"]
)
def test_what_is_not_a_public_url(url: str) -> None:
    with pytest.raises(InvalidRequest):
        check_public_url(url)
    with pytest.raises(InvalidRequest):
        parse_networks("10.0.0.1/8")


@contextmanager
def tls_to(server: Server) -> Iterator[ssl.SSLSocket]:
    address, context = httpx.URL(server.url), ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((address.host, address.port), 20) as plain, context.wrap_socket(plain) as secure:
        yield secure


@pytest.mark.parametrize("workers", ["1", "2"])
def test_tls_of_our_own_is_reloaded(start_server: Start, tmp_path: Path, workers: str) -> None:
    cert, key = make_certificate(tmp_path, "first")
    with start_server("--tls-cert", str(cert), "--tls-key", str(key), "--workers", workers) as server:
        assert server.url.startswith("https://")
        with httpx.Client(base_url=server.url, verify=False, timeout=60, trust_env=False) as client:
            assert client.get("/healthz", headers={"origin": server.url}).status_code == 200
            run = {"language": "python", "code": "print(6 * 7)", "timeout": 20}
            assert client.post("/v1/run", json=run, headers={"origin": server.url}).json()["stdout"] == "42\n"
        with tls_to(server) as secure:
            before = secure.getpeercert(binary_form=True)
        make_certificate(tmp_path, "second")

        def is_new() -> bool:
            with tls_to(server) as secure:
                return secure.getpeercert(binary_form=True) != before

        until(is_new)


def test_a_certificate_that_cannot_be_used_stops_the_start(start_server: Start, tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    with pytest.raises(AssertionError, match="cannot use"), start_server("--tls-cert", str(tmp_path / "bad.pem")):
        pass
