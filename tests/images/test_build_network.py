"""RUN steps that fetch over TLS from a mirror on loopback, through the proxy, as `--allow-domain` lets them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.image_roots import make_root
from tests.net.conftest import authority, server_tls  # noqa: F401
from tests.net.in_cage import World, world

from warmcell.images import ImageStore
from warmcell.interfaces.cli import main
from warmcell.net.proxy.certificate_authority import SandboxAuthority


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(monkeypatch) as made:
        yield made


def test_a_build_fetches_from_a_mirror(
    outside: World,
    authority: SandboxAuthority,  # noqa: F811
    server_tls: ssl.SSLContext,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mirror = outside.site(tmp_path / "mirror", server_tls)
    store = ImageStore(tmp_path / "store")
    store.import_(make_root(tmp_path / "root", "sh", "curl"), "base:1")
    context = tmp_path / "context"
    context.mkdir()
    (context / "ca.pem").write_bytes(authority.certificate_pem)
    fetch = f"curl -sSf --cacert /ca.pem https://site.test:{mirror.port}/hello.txt -o /fetched"
    (context / "Dockerfile").write_text(f"FROM base:1\nCOPY ca.pem /\nRUN {fetch}\n")
    words = ["image", "build", "--store", store.path, "-t", "built:1", str(context)]
    allowed = [word for name in ("site.test", "127.0.0.1") for word in ("--allow-domain", f"{name}:{mirror.port}")]

    assert main(words) != 0
    assert "allow_domain" in capsys.readouterr().err
    assert main([*words, *allowed]) == 0
    assert (Path(store.get("built:1").layer_paths[-1]) / "fetched").read_text() == "hello from outside"
    assert [line for line, _ in mirror.requests] == ["GET /hello.txt HTTP/1.1"]

    for refused in ("RUN curl -sSf https://other.test/", f"RUN --network=none {fetch}2"):
        (context / "Dockerfile").write_text(f"FROM base:1\nCOPY ca.pem /\n{refused}\n")
        assert main([*words, *allowed]) != 0
    assert "other.test:443" in capsys.readouterr().err
    assert len(mirror.requests) == 1
