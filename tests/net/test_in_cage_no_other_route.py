"""A guest with an allowed domain has the proxy and nothing else: every other address is as far away as without one."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.escape.harness import Outcome
from tests.escape.payloads import guest
from tests.helpers import ALONE, ALONE_IN_SHELL
from tests.net.in_cage import PROXY_PORT, Ear, World, allow_names, denials_by_target, run, world

from warmcell.backends.process.backend import ProcessBackend
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.policy.builder import SandboxPolicyBuilder

CONNECT = """
    import socket, time
    def family(host):
        return socket.AF_INET6 if ':' in host else socket.AF_INET
    def tcp(host, port):
        with socket.socket(family(host)) as s:
            s.settimeout(60)
            s.connect((host, port))
    def udp(host, port):
        with socket.socket(family(host), socket.SOCK_DGRAM) as s:
            s.settimeout(0.1)
            s.sendto(b'canary', (host, port))
            return s.recv(100)
    for host in hosts:
        for port in ports:
            attempt(f'tcp {host} {port}', tcp, host, port)
            attempt(f'udp {host} {port}', udp, host, port)
    """


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(monkeypatch) as made:
        yield made


@pytest.fixture
def ear(outside: World) -> Iterator[Ear]:
    made = outside.ear()
    yield made
    assert made.messages() == []
    assert outside.dialled == [] and outside.resolver.asked == []


@pytest.fixture
def backend(outside: World, ear: Ear) -> ProcessBackend:
    """The ear's own port is allowed for a name and for loopback, so that only the missing route is between them."""
    return outside.backend(allow_names(80, 443, ear.port).build())


def guard(body: str, **values: object) -> str:
    """A payload that tries nothing unless loopback is all there is, so that it is harmless where the cage is broken."""
    return ALONE + guest(body, **values)


def run_attempts(backend: ProcessBackend, body: str, **values: object) -> dict[str, str]:
    """The guest's attempts, none of which may have succeeded."""
    result = run(backend, guard(body, **values))
    assert result.enforced.network == "network namespace + proxy"
    return Outcome("ended", result, 0).check_refused()


def own_addresses() -> list[str]:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # no packet is sent: only the route is looked up
        return [probe.getsockname()[0]]
    return []


@pytest.mark.attack("NW-01")
def test_the_hosts_own_addresses(backend: ProcessBackend, ear: Ear) -> None:
    hosts = ["127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "localhost", *own_addresses()]
    report = run_attempts(backend, CONNECT, hosts=hosts, ports=[ear.port, PROXY_PORT + 1])
    assert len(report) == 4 * len(hosts)


@pytest.mark.attack("NW-01")
def test_the_listener_is_the_only_one_on_loopback(backend: ProcessBackend) -> None:
    """The kernel's own list of the namespace, and a bind and some connects to see that it tells the truth."""
    body = """
        import socket
        def lines(name):
            return open('/proc/net/' + name).read().splitlines()[1:]
        print([[line.split()[1] for line in lines(name)] for name in ('tcp', 'tcp6', 'udp', 'udp6', 'raw')])
        attempt('bind', lambda: socket.create_server(('127.0.0.1', 3128)))
        for port in (22, 53, 80, 443, 2375, 3127, 3129, 5432, 6379, 8080):
            attempt(port, lambda: socket.create_connection(('127.0.0.1', port), 2))
        print(socket.create_connection(('127.0.0.1', 3128), 2).getpeername())
        """
    result = run(backend, guard(body))
    lines = result.stdout.splitlines()
    report = Outcome("ended", result, 0).check_refused()
    assert report.pop("bind") == "EADDRINUSE" and set(report.values()) == {"ECONNREFUSED"}
    assert lines[0] == "[['0100007F:0C38'], [], [], [], []]" and lines[-1] == "('127.0.0.1', 3128)"


@pytest.mark.attack("NW-02")
def test_metadata(backend: ProcessBackend) -> None:
    hosts = ["169.254.169.254", "fd00:ec2::254", "169.254.170.2", "100.100.100.200", "168.63.129.16"]
    report = run_attempts(backend, CONNECT, hosts=hosts, ports=[80])
    assert set(report.values()) <= {"ENETUNREACH", "EHOSTUNREACH", "ECONNREFUSED", "EPERM"}
    named_service = run_attempts(backend, CONNECT, hosts=["metadata.google.internal"], ports=[80])
    assert not any(end.startswith("ok:") for end in named_service.values())


@pytest.mark.attack("NW-06")
def test_names_are_asked_of_nobody(outside: World, backend: ProcessBackend, ear: Ear) -> None:
    """Neither a refused name nor the allowed one: the guest has no resolver, the proxy asks for it."""
    servers = [
        line.split()[1] for line in Path("/etc/resolv.conf").read_text().splitlines() if line[:10] == "nameserver"
    ]
    body = """
        import socket, time
        started = time.monotonic()
        for name in ('canary.attacker.test', 'site.test', 'x.' * 20 + 'test'):
            attempt('getaddrinfo ' + name, lambda: socket.getaddrinfo(name, 80))
        print('conf', repr(open('/etc/resolv.conf').read()))
        query = b'\\x12\\x34\\x01\\0\\0\\x01\\0\\0\\0\\0\\0\\0\\x06canary\\x04test\\0\\0\\x01\\0\\x01'
        def ask(kind, host, to):
            with socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET, kind) as s:
                s.settimeout(0.2)
                s.connect((host, to))
                s.sendall(query)
                return s.recv(512)
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            attempt(f'local {kind}', ask, kind, '127.0.0.1', port)
            for host in [*servers, '127.0.0.53', '127.0.0.1', '192.0.2.53', '2001:db8::53']:
                attempt(f'{host} {kind}', ask, kind, host, 53)
        print('slow' if time.monotonic() - started > 15 else 'fast')
        """
    result = run(backend, guard(body, port=ear.port, servers=servers))
    Outcome("ended", result, 0).check_refused()
    assert "conf ''" in result.stdout and result.stdout.endswith("fast\n")
    assert outside.resolver.asked == []
    assert denials_by_target(result).get("name resolution") == "networkRules"


@pytest.mark.attack("NW-07")
def test_every_other_address_fails_at_once(backend: ProcessBackend, ear: Ear) -> None:
    hosts = ["192.0.2.1", "198.51.100.7", "2001:db8::1", "10.0.0.1", "192.168.1.1", "224.0.0.1", "255.255.255.255"]
    result = run(backend, guard(CONNECT, hosts=hosts, ports=[80, ear.port]))
    report = Outcome("ended", result, 0).check_refused()  # a connect that waits would meet the run's timeout
    assert {end for name, end in report.items() if name.startswith("tcp")} <= {"ENETUNREACH", "EHOSTUNREACH", "EACCES"}


@pytest.mark.attack("NW-07")
def test_other_kinds_of_sockets(backend: ProcessBackend) -> None:
    body = """
        import socket
        kinds = {
            'raw tcp': (socket.AF_INET, socket.SOCK_RAW, 6),
            'raw icmp': (socket.AF_INET, socket.SOCK_RAW, 1),
            'raw6': (socket.AF_INET6, socket.SOCK_RAW, 58),
            'packet': (socket.AF_PACKET, socket.SOCK_RAW, 0x300),
            'packet dgram': (socket.AF_PACKET, socket.SOCK_DGRAM, 0x300),
            'vsock': (40, socket.SOCK_STREAM, 0),
            'bluetooth': (31, socket.SOCK_RAW, 1),
            'can': (29, socket.SOCK_RAW, 1),
            'xdp': (44, socket.SOCK_RAW, 0),
            'sctp': (socket.AF_INET, socket.SOCK_SEQPACKET, 132),
            'tipc': (30, socket.SOCK_RDM, 0),
            'rds': (21, socket.SOCK_SEQPACKET, 0),
            'alg': (38, socket.SOCK_SEQPACKET, 0),
        }
        for name, kind in kinds.items():
            attempt(name, lambda: socket.socket(*kind).fileno())
        def ping():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1) as s:
                s.settimeout(0.2)
                s.sendto(bytes([8, 0, 0xf7, 0xff, 0, 0, 0, 0]), ('192.0.2.1', 0))
                return s.recv(100)
        attempt('ping', ping)
        """
    run_attempts(backend, body)


@pytest.mark.attack("NW-07")
def test_programs_that_do_not_ask_the_proxy(backend: ProcessBackend, ear: Ear) -> None:
    script = f"""{ALONE_IN_SHELL}
        port={ear.port}
        unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
        for host in 127.0.0.1 192.0.2.1; do
            (echo x > /dev/tcp/$host/$port) 2>/dev/null && echo REACHED tcp
            bash -c "echo x > /dev/udp/$host/$port" 2>/dev/null
            curl -s -m 2 --noproxy '*' http://$host:$port/ && echo REACHED curl
            curl -s -m 2 --noproxy '*' -T - tftp://$host:$port/x </dev/null && echo REACHED tftp
            wget -q -T 2 -O - http://$host:$port/ 2>/dev/null && echo REACHED wget
            nc -w 2 $host $port </dev/null 2>/dev/null && echo REACHED nc
            git ls-remote git://$host:$port/x 2>/dev/null && echo REACHED git
            ssh -o BatchMode=yes -o ConnectTimeout=2 -p $port $host true 2>/dev/null && echo REACHED ssh
        done
        getent hosts site.test && echo REACHED getent
        echo end
        """
    assert run(backend, script, "command").stdout == "end\n"


@pytest.mark.attack("NW-03")
def test_abstract_sockets_of_the_host(backend: ProcessBackend) -> None:
    name = f"\0warmcell-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX) as stream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
        stream.bind(name)
        stream.listen()
        datagram.bind(name + "d")
        body = """
            import socket
            attempt('stream', lambda: socket.socket(socket.AF_UNIX).connect(name))
            attempt('datagram', lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', name + 'd'))
            """
        run_attempts(backend, body, name=name)
        for item in (stream, datagram):
            item.setblocking(False)
        with pytest.raises(BlockingIOError):
            stream.accept()
        with pytest.raises(BlockingIOError):
            datagram.recv(10)


@pytest.mark.attack("NW-08")
@pytest.mark.parametrize("rules", ["empty fetch policy", "no rules any more", "only a block list"])
def test_an_empty_list_allows_nothing(outside: World, ear: Ear, rules: str) -> None:
    if rules == "empty fetch policy":
        backend = outside.backend(fetch_policy=FetchPolicy())
    elif rules == "only a block list":
        backend = outside.backend(fetch_policy=FetchPolicy(blocked_domains=("evil.test",)))
    else:
        backend = outside.backend(allow_names(ear.port).build())
        backend.set_network_rules([])
    script = f"""
        for url in http://site.test:{ear.port}/ http://127.0.0.1:{ear.port}/ http://evil.test/ https://site.test/; do
            curl -s -m 5 --noproxy '' -o /dev/null -w '%{{http_code}} %{{http_connect}}\\n' $url
        done
        """
    result = run(backend, script, "command")
    assert result.stdout.splitlines() == ["403 000", "403 000", "403 000", "000 403"]
    assert set(denials_by_target(result)) == {
        f"site.test:{ear.port}",
        f"127.0.0.1:{ear.port}",
        "evil.test:80",
        "site.test:443",
    }


@pytest.mark.attack("NW-08")
def test_a_backend_made_without_a_network_never_gets_one(outside: World, ear: Ear) -> None:
    backend = outside.backend(SandboxPolicyBuilder().allow_process_spawn().build())
    backend.set_network_rules(allow_names(ear.port).build().network_rules)
    result = run(backend, guard(CONNECT, hosts=["127.0.0.1"], ports=[ear.port, PROXY_PORT]))
    Outcome("ended", result, 0).check_refused()
    assert result.enforced.network == "network namespace"
