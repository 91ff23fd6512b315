"""The proxy on a listener that lives in another network namespace, where it is the only thing that answers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import require
from tests.net.servers import StubResolver
from tests.net.site import Site

from warmcell.core.types import Denial
from warmcell.net.proxy.egress_proxy import EgressProxy, proxy_environment

# Runs inside the namespace: loopback up, listen, hand the listener out, wait for the word, become the program.
INSIDE = """
import fcntl, os, socket, struct, sys
channel = socket.socket(fileno=int(sys.argv[1]))
with socket.socket() as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", 0x41))
listener = socket.create_server(("127.0.0.1", 3128))
socket.send_fds(channel, [b"here"], [listener.fileno()])
assert channel.recv(1) == b"g"
os.execvp(sys.argv[2], sys.argv[2:])
"""

PROBES = """
import socket, sys
port = int(sys.argv[1])
def attempt(what):
    try:
        return repr(what())
    except OSError as error:
        return type(error).__name__
def tcp(host, port, family=socket.AF_INET):
    with socket.socket(family) as s:
        s.settimeout(2)
        s.connect((host, port))
        return "connected"
def udp(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(b"canary", (host, port))
        return "sent"
print("loopback", attempt(lambda: tcp("127.0.0.1", port)))
print("loopback6", attempt(lambda: tcp("::1", port, socket.AF_INET6)))
print("metadata", attempt(lambda: tcp("169.254.169.254", 80)))
print("dns", attempt(lambda: udp("192.0.2.53", 53)))
print("name", attempt(lambda: socket.getaddrinfo("site.test", port)))
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "hello.txt").write_text("hello from outside")
    made = Site(tmp_path / "site")
    yield made
    made.close()


def run_inside(command: list[str], site: Site, denials: list[Denial]) -> str:
    ours, theirs = socket.socketpair()
    inside = [sys.executable, "-c", INSIDE, str(theirs.fileno()), *command]
    environment = {"PATH": os.environ["PATH"], **proxy_environment(3128)}
    with ours, theirs:
        process = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--net", *inside],
            env=environment,
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        theirs.close()
        _, (descriptor,), _, _ = socket.recv_fds(ours, 10, 1)
        listener = socket.socket(fileno=descriptor)
        resolver = StubResolver().add("site.test")
        with EgressProxy(listener, site.policy, resolver=resolver, on_denial=denials.append):
            ours.sendall(b"g")
            return process.communicate(timeout=30)[0]


@pytest.mark.needs("linux", "user namespaces", "curl")
def test_the_proxy_is_the_only_way_out(site: Site) -> None:
    denials: list[Denial] = []
    curl = shutil.which("curl")
    require(curl, "curl is not installed")
    script = (
        f"curl -sS http://site.test:{site.port}/hello.txt; echo; "
        f"curl -s -o /dev/null -w '%{{http_code}}\\n' http://evil.test/; "
        f"curl -s --noproxy '*' http://127.0.0.1:{site.port}/hello.txt; echo \"direct: $?\""
    )
    lines = run_inside(["sh", "-c", script], site, denials).split("\n")
    assert lines[:3] == ["hello from outside", "403", "direct: 7"]
    assert [denial.what for denial in denials] == ["evil.test:80"]
    assert len(site.requests) == 1


@pytest.mark.needs("linux", "user namespaces")
def test_nothing_else_answers(site: Site) -> None:
    output = run_inside([sys.executable, "-c", PROBES, str(site.port)], site, [])
    found = dict(line.split(" ", 1) for line in output.strip().split("\n"))
    assert set(found) == {"loopback", "loopback6", "metadata", "dns", "name"}
    assert not any("connected" in answer or "sent" in answer or "127.0.0.1" in answer for answer in found.values()), (
        found
    )
    assert site.requests == []
