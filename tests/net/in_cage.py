"""The outside of a caged guest's network: servers, names and dials that the tests can see, all of it on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import eventually, has_user_namespaces, require
from tests.net.servers import StubResolver
from tests.net.site import Site

import warmcell.net.connect.dial
from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.types import ExecRequest, ExecResult, Language
from warmcell.languages.config import ProcessConfig
from warmcell.net.rules.hosts import IPAddress
from warmcell.policy.builder import SandboxPolicyBuilder

OURS = ("warmcell egress proxy", "resolve ")
PROXY_PORT = 3128


#: Payloads talk to the proxy with these, byte by byte.
TALK = """
import json, socket
def to_proxy(data):
    s = socket.create_connection(("127.0.0.1", 3128), 8)
    s.sendall(data)
    return s
def everything(s):
    found = b""
    try:
        while data := s.recv(65536):
            found += data
    except OSError:
        pass
    return found
def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else answer.hex()
def request(url, host=None, method="GET"):
    host = host or url.split("/")[2]
    return everything(to_proxy(f"{method} {url} HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n".encode()))
def tunnel(where):
    s = to_proxy(f"CONNECT {where} HTTP/1.1\\r\\nHost: {where}\\r\\n\\r\\n".encode())
    return s, s.recv(65536)
def socks(kind, address, port, command=1):
    s = to_proxy(b"\\x05\\x01\\x00")
    assert s.recv(2) == b"\\x05\\x00"
    s.sendall(bytes([5, command, 0, kind]) + address + port.to_bytes(2, "big"))
    return s, s.recv(10)[1]
def socks_name(name, port, command=1):
    return socks(3, bytes([len(name)]) + name.encode(), port, command)
"""


class Ear:
    """Host sockets on one port, TCP and UDP, that record what they receive and never reply."""

    def __init__(self) -> None:
        tcp = socket.create_server(("0.0.0.0", 0))
        self.port = int(tcp.getsockname()[1])
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("0.0.0.0", self.port))
        self._sockets = [tcp, udp]
        with contextlib.suppress(OSError):
            self._sockets.append(socket.create_server(("::1", self.port), family=socket.AF_INET6))
        for item in self._sockets:
            item.setblocking(False)

    def messages(self) -> list[bytes]:
        """One entry per connection and datagram since the last call; b"" for a connection without data."""
        found: list[bytes] = []
        for item in self._sockets:
            with contextlib.suppress(BlockingIOError):
                while True:
                    found.append(item.recv(65536) if item.type == socket.SOCK_DGRAM else _words(item.accept()[0]))
        return found

    def close(self) -> None:
        for item in self._sockets:
            item.close()


def _words(connection: socket.socket) -> bytes:
    found = b""
    with connection, contextlib.suppress(OSError):
        connection.settimeout(1)
        while data := connection.recv(65536):
            found += data
    return found


class World:
    """What the guests of one test can reach, and what was seen of them from outside."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self.resolver = StubResolver().add("site.test").add("other.test")
        self.dialled: list[tuple[str, int]] = []
        #: Where the well-known ports really are, since a test may not bind them.
        self.ports: dict[int, int] = {}

    async def connect(self, address: IPAddress, port: int) -> socket.socket:
        """In place of the proxy's own: remembers, and never leaves this machine."""
        self.dialled.append((str(address), port))
        if not address.is_loopback:
            raise OSError(f"no test may reach {address}")
        return await _CONNECT(address, self.ports.get(port, port))

    def ear(self) -> Ear:
        ear = Ear()
        self._cleanup.callback(ear.close)
        return ear

    def site(self, root: Path, tls: object = None) -> Site:
        root.mkdir(exist_ok=True)
        (root / "hello.txt").write_text("hello from outside")
        site = Site(root, tls)
        self._cleanup.callback(site.close)
        return site

    def backend(self, policy: Any = None, **options: Any) -> ProcessBackend:
        """Without waiting cells, and warm: what a later run leaves behind is then that run's."""
        config = options.pop("config", None) or ProcessConfig(pool_size=0, pool_min=0)
        backend = self._cleanup.enter_context(ProcessBackend(config, policy=policy, **options))
        backend.execute_blocking(ExecRequest(Language.PYTHON, "pass", 20))
        return backend


_CONNECT = warmcell.net.connect.dial._connect


@contextlib.contextmanager
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Names and dials of every egress proxy of this process go through the world."""
    require(sys.platform == "linux" and has_user_namespaces(), "this host has no user namespaces")
    with ExitStack() as cleanup:
        made = World(cleanup)
        monkeypatch.setattr("warmcell.net.connect.admission.system_resolver", made.resolver)
        monkeypatch.setattr("warmcell.net.connect.dial._connect", made.connect)
        yield made
    assert our_threads() == []
    assert {address for address, _ in made.dialled} <= {"127.0.0.1"}


def allow_names(*ports: int, names: Sequence[str] = ("site.test",)) -> SandboxPolicyBuilder:
    """Allows the names at the ports, and the loopback address that they resolve to."""
    builder = SandboxPolicyBuilder().allow_process_spawn()
    for name in (*names, "127.0.0.1"):
        builder = builder.allow_domain(name, ports)
    return builder


def run(
    backend: ProcessBackend, code: str, language: str = "python", *, timeout: float = 20, **more: Any
) -> ExecResult:
    """One run; afterwards no thread, socket or descriptor of it is left."""
    before = descriptors()
    result = backend.execute_blocking(ExecRequest(language, code, timeout, env=more.pop("env", {})), **more)  # type: ignore[arg-type]
    assert our_threads() == []
    if not eventually(lambda: descriptors() <= before, 3):
        _check_that_they_are_not_of_runs(backend, before)
    return result


def _check_that_they_are_not_of_runs(backend: ProcessBackend, before: int) -> None:
    """Another test's spare worker may have been made meanwhile: what runs leave behind grows with every one of them."""
    now = descriptors()
    for _ in range(3):
        backend.execute_blocking(ExecRequest("python", "pass", 20))
    assert eventually(lambda: descriptors() <= now), f"descriptors left behind: {before} -> {now} -> {descriptors()}"


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(OURS)]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def denials_by_target(result: ExecResult) -> dict[str, str]:
    """What the run was refused and by which rule, after checking that each refusal tells all of it."""
    for denial in result.denials:
        assert denial.kind == "network" and denial.what and denial.rule and denial.hint, denial
    return {denial.what: denial.rule for denial in result.denials}
