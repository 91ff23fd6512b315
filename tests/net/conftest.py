"""What the networking tests share."""

from __future__ import annotations

import importlib.util
import socket
import ssl
from collections.abc import Callable, Iterator

import pytest
from tests.helpers import require
from tests.net.servers import StubResolver

from warmcell.core.types import Denial
from warmcell.net.proxy.certificate_authority import SandboxAuthority
from warmcell.net.proxy.egress_proxy import EgressProxy, Rules
from warmcell.net.rules.hosts import Host

AMBIENT = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def no_ambient_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in AMBIENT:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def resolver() -> StubResolver:
    """Knows `site.test` and `other.test`, both of them at home."""
    return StubResolver().add("site.test").add("other.test")


@pytest.fixture(scope="session")
def authority() -> SandboxAuthority:
    """The certificate authority of the test internet."""
    require(importlib.util.find_spec("cryptography"), "the extra net-tls is not installed")
    return SandboxAuthority(["test", "*.test", "127.0.0.1"])


@pytest.fixture(scope="session")
def server_tls(authority: SandboxAuthority) -> ssl.SSLContext:
    """What a server that really is `site.test` presents."""
    return authority.context_for(Host("site.test"))


@pytest.fixture(scope="session")
def client_tls(authority: SandboxAuthority) -> ssl.SSLContext:
    """A client that trusts the test internet."""
    return ssl.create_default_context(cadata=authority.certificate_pem.decode())


class Proxies:
    """Makes proxies on ordinary loopback listeners and remembers what they said."""

    def __init__(self, resolver: StubResolver) -> None:
        self._resolver = resolver
        self._made: list[EgressProxy] = []
        self.denials: list[Denial] = []
        self.lines: list[str] = []

    def start(self, rules: Rules, **more: object) -> EgressProxy:
        listener = socket.create_server(("127.0.0.1", 0))
        proxy = EgressProxy(
            listener,
            rules,
            on_denial=self.denials.append,
            audit=self.lines.append,
            resolver=self._resolver,
            **more,  # type: ignore[arg-type]
        )
        self._made.append(proxy)
        return proxy.start()

    def close(self) -> None:
        for proxy in self._made:
            proxy.close()


@pytest.fixture
def proxies(resolver: StubResolver) -> Iterator[Proxies]:
    made = Proxies(resolver)
    yield made
    made.close()


@pytest.fixture
def start_proxy(proxies: Proxies) -> Callable[..., EgressProxy]:
    return proxies.start
