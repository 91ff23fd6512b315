"""NW: without network rules nothing can be reached, and every attempt fails at once."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest
from tests.helpers import ALONE, ALONE_IN_SHELL

from warmcell.core.errors import InvalidRequest, PolicyViolation
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import NetworkRule, SandboxPolicy


class Ear:
    """Host sockets that remember whether anybody came."""

    def __init__(self) -> None:
        self.tcp = socket.create_server(("0.0.0.0", 0))
        self.port = self.tcp.getsockname()[1]
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("0.0.0.0", self.port))
        self.sockets = [self.tcp, self.udp]
        with contextlib.suppress(OSError):
            self.sockets.append(socket.create_server(("::1", self.port), family=socket.AF_INET6))
        for item in self.sockets:
            item.setblocking(False)

    def read_received(self) -> list[object]:
        found: list[object] = []
        for item in self.sockets:
            with contextlib.suppress(BlockingIOError):
                found.append(item.recvfrom(100) if item.type == socket.SOCK_DGRAM else item.accept())
        return found

    def close(self) -> None:
        for item in self.sockets:
            item.close()


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    try:
        assert ear.read_received() == []
    finally:
        ear.close()


def _own_addresses() -> list[str]:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # no packet is sent: only the route is looked up
        return [probe.getsockname()[0]]
    return []


_CONNECT = """
    import socket, time
    def tcp(host):
        with socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET) as s:
            s.settimeout(60)
            s.connect((host, port))
    def udp(host):
        with socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(0.2)
            s.sendto(b'canary', (host, port))
            s.recv(1)
    for host in hosts:
        attempt('tcp ' + host, lambda: tcp(host))
        attempt('udp ' + host, lambda: udp(host))
    """


@pytest.mark.attack("NW-01")
@pytest.mark.claim("WC-NW-1")
def test_listeners_of_the_host_hear_nothing(cage: Cage, ear: Ear) -> None:
    hosts = ["127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "localhost", *_own_addresses()]
    with contextlib.suppress(OSError):
        hosts.append(socket.gethostbyname(socket.gethostname()))
    cage.run(guest(_CONNECT, hosts=hosts, port=ear.port)).check_refused()
    assert ear.read_received() == []


@pytest.mark.attack("NW-02")
@pytest.mark.claim("WC-NW-1")
def test_metadata_services_are_unreachable(cage: Cage) -> None:
    hosts = ["169.254.169.254", "fd00:ec2::254", "169.254.170.2", "100.100.100.200", "metadata.google.internal"]
    report = cage.run(ALONE + guest(_CONNECT, hosts=hosts, port=80)).check_refused()
    assert set(report.values()) <= {"ENETUNREACH", "EHOSTUNREACH", "ECONNREFUSED", "gaierror", "EPERM", "-2", "-3"}


@pytest.mark.attack("NW-03")
@pytest.mark.claim("WC-NW-1")
@pytest.mark.parametrize("is_open", [False, True], ids=["no network", "host network"])
def test_abstract_sockets_of_the_host_are_unreachable(cage: Cage, is_open: bool) -> None:
    """With the host's network allowed, abstract names are still no network."""
    name = f"\0warmcell-{os.urandom(8).hex()}"
    stream, datagram = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with stream, datagram:
        stream.bind(name)
        stream.listen()
        datagram.bind(name + "d")
        body = """
            import socket
            attempt('stream', lambda: socket.socket(socket.AF_UNIX).connect(name))
            attempt('datagram', lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', name + 'd'))
            attempt('connected', lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).connect(name + 'd'))
            attempt('sendmsg', lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, name + 'd'))
            """
        builder = SandboxPolicyBuilder().allow_process_spawn()
        policy = builder.allow_network().build() if is_open else builder.build()
        cage.run(guest(body, name=name), backend=cage.backend(policy)).check_refused()
        for item in (stream, datagram):
            item.setblocking(False)
        with pytest.raises(BlockingIOError):
            stream.accept()
        with pytest.raises(BlockingIOError):
            datagram.recv(10)


@pytest.mark.attack("NW-04")
@pytest.mark.claim("WC-NW-1")
def test_pathname_sockets_of_the_host_are_not_there(cage: Cage, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        path = str(tmp_path / "s")
        listener.bind(path)
        listener.listen()
        os.chmod(path, 0o777)
        known = [
            "/run/docker.sock",
            "/var/run/docker.sock",
            "/run/containerd/containerd.sock",
            "/run/podman/podman.sock",
            "/run/systemd/private",
            "/run/dbus/system_bus_socket",
            "/run/user/0/bus",
            "/tmp/.X11-unix/X0",
            os.environ.get("SSH_AUTH_SOCK", "/run/ssh-agent"),
            path,
        ]
        body = """
            import socket
            for path in paths:
                attempt(path, lambda: socket.socket(socket.AF_UNIX).connect(path))
            """
        report = cage.run(guest(body, paths=known)).check_refused()
        assert set(report.values()) <= {"ENOENT", "EACCES", "EPERM", "ENOTDIR"}
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.attack("NW-06")
@pytest.mark.claim("WC-NW-1")
def test_no_name_is_asked_for_outside(cage: Cage) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        resolver.bind(("127.0.0.1", 0))
        resolver.setblocking(False)
        port = resolver.getsockname()[1]
        servers = [
            line.split()[1] for line in Path("/etc/resolv.conf").read_text().splitlines() if line[:10] == "nameserver"
        ]
        body = """
            import socket, time
            started = time.monotonic()
            attempt('getaddrinfo', lambda: socket.getaddrinfo('canary.attacker.test', 80))
            attempt('gethostbyname', lambda: socket.gethostbyname('x.canary.attacker.test'))
            print('conf', repr(open('/etc/resolv.conf').read()))
            query = b'\\x12\\x34\\x01\\0\\0\\x01\\0\\0\\0\\0\\0\\0\\x06canary\\x04test\\0\\0\\x01\\0\\x01'
            def ask(host, to):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                    s.settimeout(0.2)
                    s.sendto(query, (host, to))
                    return s.recv(512)
            attempt('local', lambda: ask('127.0.0.1', port))
            for host in servers:
                attempt('server ' + host, lambda: ask(host, 53))
            print('slow' if time.monotonic() - started > 15 else 'fast')
            """
        outcome = cage.run(ALONE + guest(body, port=port, servers=servers))
        outcome.check_refused()
        assert "conf ''" in outcome.stdout and outcome.stdout.endswith("fast\n")
        with pytest.raises(BlockingIOError):
            resolver.recv(100)


@pytest.mark.attack("NW-07")
@pytest.mark.claim("WC-NW-1")
def test_every_protocol_fails_at_once(cage: Cage, ear: Ear) -> None:
    hosts = ["192.0.2.1", "198.51.100.7", "2001:db8::1", "10.0.0.1", "192.168.1.1", "224.0.0.1", "255.255.255.255"]
    report = cage.run(ALONE + guest(_CONNECT, hosts=hosts, port=ear.port)).check_refused()
    # A connect that waits would meet the run's timeout.
    assert {end for name, end in report.items() if name.startswith("tcp")} <= {"ENETUNREACH", "EHOSTUNREACH", "EACCES"}


@pytest.mark.attack("NW-07")
@pytest.mark.claim("WC-NW-1")
def test_programs_reach_nothing(cage: Cage, ear: Ear) -> None:
    script = f"""
        port={ear.port}
        for host in 127.0.0.1 192.0.2.1; do
            (echo x > /dev/tcp/$host/$port) 2>/dev/null && echo REACHED tcp
            bash -c "echo x > /dev/udp/$host/$port" 2>/dev/null
            curl -s -m 2 http://$host:$port/ && echo REACHED curl
            wget -q -T 2 -O - http://$host:$port/ 2>/dev/null && echo REACHED wget
            nc -w 2 $host $port </dev/null 2>/dev/null && echo REACHED nc
            git ls-remote http://$host:$port/x 2>/dev/null && echo REACHED git
            ssh -o BatchMode=yes -o ConnectTimeout=2 -p $port $host true 2>/dev/null && echo REACHED ssh
            ping -c 1 -W 1 $host >/dev/null 2>&1 && [ $host != 127.0.0.1 ] && echo REACHED ping
        done
        getent hosts canary.attacker.test && echo REACHED getent
        echo end
        """
    outcome = cage.run(f"{ALONE_IN_SHELL}\n{script}", "command", timeout=60)
    assert outcome.stdout == "end\n" and outcome.status == "ended"


@pytest.mark.attack("NW-07")
@pytest.mark.claim("WC-NW-1")
def test_the_network_cannot_be_configured(cage: Cage) -> None:
    body = """
        import fcntl, socket, struct
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        name = b'lo'.ljust(16, b'\\0')
        attempt('down', lambda: fcntl.ioctl(s, 0x8914, name + struct.pack('=H14x', 0)))
        attempt('address', lambda: fcntl.ioctl(s, 0x8916, name + struct.pack('=HH4s8x', 2, 0, bytes([10, 0, 0, 1]))))
        attempt('bridge', lambda: fcntl.ioctl(s, 0x89a0, b'br0'.ljust(16, b'\\0')))
        attempt('tun', lambda: os.open('/dev/net/tun', os.O_RDWR))
        n = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 0)
        def netlink(kind, payload):
            n.send(struct.pack('=IHHII', 16 + len(payload), kind, 0x605, 1, 0) + payload)
            code = struct.unpack_from('=i', n.recv(4096), 16)[0]
            if code:
                raise OSError(-code, 'netlink')
        attempt('new link', lambda: netlink(16, struct.pack('=BxHiII', 0, 0, 0, 0, 0)))
        attempt('new route', lambda: netlink(24, struct.pack('=8BI', 2, 0, 0, 0, 254, 4, 0, 1, 0)))
        attempt('mark', lambda: s.setsockopt(socket.SOL_SOCKET, 36, 1))
        attempt('iptables', lambda: s.setsockopt(0, 64, bytes(96)))
        """
    cage.run(ALONE + guest(body)).check_refused()


@pytest.mark.attack("NW-08")
@pytest.mark.claim("WC-NW-2")
@pytest.mark.parametrize(
    "text",
    ["{}", '{"networkRules": []}', '{"networkRules": [], "allowNetwork": false}', '{"allowedPaths": []}'],
)
def test_an_empty_list_allows_nothing(cage: Cage, ear: Ear, text: str) -> None:
    policy = SandboxPolicy.from_json(text)
    outcome = cage.run(guest(_CONNECT, hosts=["127.0.0.1"], port=ear.port), backend=cage.backend(policy))
    outcome.check_refused()
    assert outcome.result.enforced.network == "network namespace"


@pytest.mark.attack("NW-08")
@pytest.mark.claim("WC-NW-2")
@pytest.mark.parametrize(
    "text",
    [
        '{"networkRules": null}',
        '{"networkRules": "*"}',
        '{"networkRules": [{}]}',
        '{"networkRules": [{"domain": ""}]}',
        '{"networkRules": [{"domain": "*"}]}',
        '{"allowNetwork": "false"}',
        '{"allowNetwork": 1}',
        '{"allowNetwork": null}',
        '{"allow_network": true}',
        '{"networkrules": []}',
        "[]",
        "null",
        "",
    ],
)
def test_a_malformed_list_is_refused(text: str) -> None:
    with pytest.raises((InvalidRequest, PolicyViolation)):
        SandboxPolicy.from_json(text)


@pytest.mark.attack("NW-08")
@pytest.mark.claim("WC-NW-2")
@pytest.mark.parametrize("domain", ["", "*", "*.", "http://a.b", "a b", "a/b", "user@host", "a\0b", "*.*.com"])
def test_a_malformed_domain_is_refused(domain: str) -> None:
    with pytest.raises((InvalidRequest, PolicyViolation)):
        NetworkRule(domain)


@pytest.mark.attack("NW-08")
@pytest.mark.claim("WC-NW-3")
def test_rules_open_the_proxy_and_nothing_else(cage: Cage, ear: Ear) -> None:
    """One allowed name: every other way out is as closed as before."""
    policy = SandboxPolicyBuilder().allow_domain("example.com").allow_process_spawn().build()
    hosts = ["127.0.0.1", "192.0.2.1", "::1", *_own_addresses()]
    backend = cage.backend(policy)
    cage.run(guest(_CONNECT, hosts=hosts, port=ear.port), backend=backend).check_refused()
    body = """
        import socket
        s = socket.create_connection(('127.0.0.1', 3128), 3)
        s.sendall(f'CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n'.encode())
        print(s.recv(100).split(b' ')[1])
        """
    assert cage.run(guest(body, port=ear.port), backend=backend).stdout.strip() != "b'200'"


@pytest.mark.attack("NW-01")
@pytest.mark.claim("WC-NW-1")
def test_two_runs_do_not_meet_on_loopback(cage: Cage) -> None:
    server = (
        "import socket, time\ns = socket.create_server(('127.0.0.1', 47123))\ns.settimeout(1.2)\n"
        "try:\n    s.accept()\n    print('MET')\nexcept TimeoutError:\n    print('alone')"
    )
    ends: list[str] = []
    thread = threading.Thread(target=lambda: ends.append(cage.run(server).stdout))
    thread.start()
    cage.run(guest(_CONNECT, hosts=["127.0.0.1"], port=47123)).check_refused()
    thread.join()
    assert ends == ["alone\n"]
