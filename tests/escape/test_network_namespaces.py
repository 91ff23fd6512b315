"""Network namespaces are used again: never with a trace of the guest before, looked at from the guest after."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest
from tests.helpers import share_no_zygotes

from warmcell import ExecRequest, OutputEvent, ProcessBackend, ProcessConfig, ResultEvent, SandboxPolicyBuilder
from warmcell.cage.linux.descriptors import closing_fd

pytestmark = [pytest.mark.needs("linux", "user namespaces"), pytest.mark.attack("LK-05")]

#: All that a guest can read of its network, and which network it is.
LOOK = """
import json, os
names = ["dev", "snmp", "snmp6", "netstat", "tcp", "tcp6", "udp", "udp6", "raw", "icmp", "unix", "packet", "netlink",
         "igmp", "igmp6", "if_inet6", "ip6_flowlabel", "protocols", "route", "arp", "fib_trie"]
def read(name):
    try:
        return open("/proc/net/" + name).read()
    except OSError as error:
        return str(error)
found = {name: read(name) for name in names}
found["protocols"] = ""  # about the whole machine
found["netlink"] = found["netlink"].splitlines()[:1]
print(json.dumps({"id": os.stat("/proc/self/ns/net").st_ino, "shows": found}))
"""

LEAVING = {
    "tcp": "s = socket.create_server(('127.0.0.1', 5000)); c = socket.create_connection(('127.0.0.1', 5000)); c.send(b'x')",
    "tcp6": "s = socket.create_server(('::1', 5000), family=socket.AF_INET6); c = socket.create_connection(('::1', 5000))",
    "tcp refused": "socket.socket().connect_ex(('127.0.0.1', 9))",
    "udp": "s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 6000)); s.sendto(b'x', ('127.0.0.1', 6000))",
    "udp to nobody": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 6001))",
    "unreachable": "socket.socket(type=socket.SOCK_DGRAM).connect_ex(('192.0.2.1', 1))",
    "time wait": "s = socket.create_server(('127.0.0.1', 5000)); c = socket.create_connection(('127.0.0.1', 5000)); a = s.accept()[0]; c.close(); a.close()",
    "flow label": "s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.setsockopt(41, 32, socket.inet_pton(socket.AF_INET6, '::1') + struct.pack('!IBBHHHI', 0x12345, 0, 3, 1, 60, 600, 0))",
    "abstract socket": "s = socket.socket(socket.AF_UNIX); s.bind('\\0canary'); s.listen()",
    "multicast": "s = socket.socket(type=socket.SOCK_DGRAM); s.setsockopt(0, 35, socket.inet_aton('224.1.1.1') + socket.inet_aton('127.0.0.1'))",
    "multicast 6": "s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.setsockopt(41, 20, socket.inet_pton(socket.AF_INET6, 'ff02::77') + struct.pack('I', 1))",
    "left behind": "s = socket.create_server(('127.0.0.1', 5000)); os.fork() or time.sleep(100)",
}


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessBackend]:
    share_no_zygotes(monkeypatch)
    with ProcessBackend(ProcessConfig(pool_size=0, pool_min=0)) as backend:
        yield backend


def look(backend: ProcessBackend) -> tuple[int, dict[str, object]]:
    found = json.loads(backend.execute_blocking(ExecRequest("python", LOOK, 30)).stdout)
    time.sleep(0.1)  # its init is reaped when the manager has nothing else to do, and its network rests
    return found["id"], found["shows"]


def test_one_without_a_trace_is_used_again(backend: ProcessBackend) -> None:
    ids = [look(backend)[0] for _ in range(30)]
    assert len(set(ids)) < 25  # each rests for a while first


@pytest.mark.parametrize("name", list(LEAVING))
def test_nothing_of_a_guest_is_in_the_next_ones_network(backend: ProcessBackend, name: str) -> None:
    _, new = look(backend)
    for _ in range(3):
        code = f"import os, socket, struct, time\ntry:\n    {LEAVING[name]}\nexcept OSError as error: print(error)"
        result = backend.execute_blocking(ExecRequest("python", code, 30))
        assert "Traceback" not in result.stderr, result.stderr
        for _ in range(3):
            assert look(backend)[1] == new
    time.sleep(1.5)  # what the kernel does later by its timers
    for _ in range(6):
        assert look(backend)[1] == new


def test_a_guest_has_no_power_over_its_network(backend: ProcessBackend) -> None:
    """It belongs to the manager's user namespace: even a guest with every capability of its own has none there."""
    code = """
import os
for path in ("/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/core/somaxconn"):
    try:
        os.write(os.open(path, os.O_WRONLY), b"1")
        print("wrote", path)
    except OSError as error:
        print("refused")
"""
    assert "wrote" not in backend.execute_blocking(ExecRequest("python", code, 30)).stdout


def test_those_of_two_guests_at_once_differ(backend: ProcessBackend) -> None:
    """Each runs until all have said which network is theirs: after its end, another may get it."""
    code = "import os, sys; print(os.stat('/proc/self/ns/net').st_ino, flush=True); sys.stdin.read()"
    reader, writer = os.pipe()
    with closing_fd(reader):
        with closing_fd(writer):
            streams = [backend.stream_blocking(ExecRequest("python", code, 60), stdin=reader) for _ in range(6)]
            first = [next(stream) for stream in streams]
        ends = [list(stream)[-1] for stream in streams]
    ids = [event.data for event in first if isinstance(event, OutputEvent)]
    assert len(ids) == len(set(ids)) == 6
    assert [end.result.exit_code for end in ends if isinstance(end, ResultEvent)] == [0] * 6


def test_the_hosts_network_is_for_those_who_were_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that has it serves no one else."""
    share_no_zygotes(monkeypatch)
    own = os.stat("/proc/self/ns/net").st_ino
    code = "import os; print(os.stat('/proc/self/ns/net').st_ino)"
    for policy, is_host in ((SandboxPolicyBuilder().allow_network().build(), True), (None, False)):
        with ProcessBackend(policy=policy) as backend:
            found = int(backend.execute_blocking(ExecRequest("python", code, 30)).stdout)
            assert (found == own) is is_host
