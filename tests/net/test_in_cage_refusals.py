"""What the proxy refuses to a caged guest: by rule, before any dial, and told in the result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.net.clients import program
from tests.net.in_cage import TALK, World, allow_names, denials_by_target, run, world

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.types import ExecRequest, ExecResult, Language
from warmcell.languages.config import ProcessConfig
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.policy.builder import SandboxPolicyBuilder

NOT_ALLOWED = "default: what is not allowed is denied"
PUBLIC_ONLY = "public addresses only"


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(monkeypatch) as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessBackend]:
    """What people write: one domain, and no address named."""
    policy = SandboxPolicyBuilder().allow_domain("site.test").allow_process_spawn().build()
    with ProcessBackend(ProcessConfig(pool_size=0, pool_min=0), policy=policy) as backend:
        backend.execute_blocking(ExecRequest(Language.PYTHON, "pass", 20))
        yield backend


@pytest.fixture
def only_site(outside: World, shared: ProcessBackend) -> ProcessBackend:
    """The shared one, in a world where nothing can be dialled unseen."""
    return shared


def talk(backend: ProcessBackend, body: str) -> tuple[Any, ExecResult]:
    """What the payload left in `answers`, and the result."""
    result = run(backend, f"{TALK}\nanswers = []\n{body}\nprint(json.dumps(answers))")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout), result


def is_untouched(outside: World) -> bool:
    """Nothing was dialled, and no name but the allowed one was asked for."""
    return outside.dialled == [] and set(outside.resolver.asked) <= {"site.test"}


NAMES = ["evil.test", "sub.site.test", "site.test.evil.test", "xsite.test", "localhost", "metadata.google.internal"]
LITERALS = ["127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.2.7"]
WRAPPED = ["[::1]", "[fd00:ec2::254]", "[::ffff:127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]"]


@pytest.mark.attack("NW-08")
def test_names_that_are_not_allowed(outside: World, only_site: ProcessBackend) -> None:
    body = f"""
for name in {NAMES!r}:
    answers.append([status(request(f"http://{{name}}/")), status(tunnel(name + ":443")[1]), socks_name(name, 443)[1]])
"""
    answers, result = talk(only_site, body)
    assert answers == [[403, 403, 2]] * len(NAMES)
    assert denials_by_target(result) == {f"{name}:{port}": NOT_ALLOWED for name in NAMES for port in (80, 443)}
    assert outside.dialled == [] and outside.resolver.asked == []


@pytest.mark.attack("NW-01")
@pytest.mark.attack("NW-02")
def test_addresses_that_are_not_named(outside: World, only_site: ProcessBackend) -> None:
    body = f"""
for name in {LITERALS + WRAPPED!r}:
    answers.append([status(request(f"http://{{name}}/")), status(tunnel(name + ":443")[1])])
for name in {LITERALS!r}:
    answers.append([2, 403] if socks(1, socket.inet_aton(name), 80)[1] == 2 else name)
for name in {[text.strip("[]") for text in WRAPPED]!r}:
    answers.append([2, 403] if socks(4, socket.inet_pton(socket.AF_INET6, name), 80)[1] == 2 else name)
"""
    answers, result = talk(only_site, body)
    count = len(LITERALS + WRAPPED)
    assert answers == [[403, 403]] * count + [[2, 403]] * count
    assert set(denials_by_target(result).values()) == {NOT_ALLOWED}
    assert {f"{name}:443" for name in LITERALS} <= set(denials_by_target(result))
    assert outside.dialled == [] and outside.resolver.asked == []


@pytest.mark.attack("NW-01")
@pytest.mark.parametrize(
    "spelling", ["2130706433", "0x7f000001", "017700000001", "127.1", "0", "127.0.0.1.", "①27.0.0.1"]
)
def test_odd_spellings_of_loopback(outside: World, only_site: ProcessBackend, spelling: str) -> None:
    body = f"""
def code(name):
    return status(everything(to_proxy(f"CONNECT {{name}}:443 HTTP/1.1\\r\\nHost: {{name}}:443\\r\\n\\r\\n".encode())))
answers = [status(request("http://{spelling}/")), code("{spelling}")]
"""
    answers, _ = talk(only_site, body)
    assert set(answers) <= {400, 403}
    assert is_untouched(outside) and outside.resolver.asked == []


PRIVATE = ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "::1", "fe80::1"]


@pytest.mark.attack("NW-02")
@pytest.mark.parametrize("answer", [*([address] for address in PRIVATE), ["93.184.215.14", "10.0.0.1"]], ids=str)
def test_an_allowed_name_that_leads_inside(outside: World, only_site: ProcessBackend, answer: list[str]) -> None:
    """Private addresses after resolution, alone or beside a public one."""
    outside.resolver.add("site.test", answer)
    body = """
answers = [status(request("http://site.test/")), status(tunnel("site.test:443")[1]), socks_name("site.test", 443)[1]]
"""
    answers, result = talk(only_site, body)
    assert answers == [403, 403, 2]
    assert denials_by_target(result) == {"site.test:80": PUBLIC_ONLY, "site.test:443": PUBLIC_ONLY}
    assert not any(address in repr(result.denials) for address in answer)
    assert outside.dialled == [] and outside.resolver.asked == ["site.test"] * 3


@pytest.mark.attack("NW-02")
def test_rebinding(outside: World, tmp_path: Path) -> None:
    """The name moves to the metadata service once it was found harmless: each connection is judged by its own answer."""
    site = outside.site(tmp_path / "site")
    outside.resolver.add("site.test", ["127.0.0.1"], ["169.254.169.254"])
    backend = outside.backend(allow_names(site.port).build())
    body = f"""
url = "http://site.test:{site.port}/hello.txt"
answers = [status(request(url)), status(request(url)), status(tunnel("site.test:{site.port}")[1])]
"""
    answers, result = talk(backend, body)
    assert answers == [200, 403, 403]
    assert denials_by_target(result) == {f"site.test:{site.port}": PUBLIC_ONLY}
    assert outside.dialled == [("127.0.0.1", site.port)] and outside.resolver.asked == ["site.test"] * 3


def test_other_ports_of_an_allowed_name(outside: World, only_site: ProcessBackend) -> None:
    body = """
for port in (22, 25, 53, 3128, 8080, 65535):
    answers.append([status(tunnel(f"site.test:{port}")[1]), socks_name("site.test", port)[1]])
"""
    answers, result = talk(only_site, body)
    assert answers == [[403, 2]] * 6
    assert denials_by_target(result)["site.test:22"] == "rule: site.test"
    assert result.denials[0].hint == "allow site.test:22"
    assert outside.dialled == [] and outside.resolver.asked == []


HELLO = """
import ssl
def hello(name):
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
"""


def test_another_name_inside_the_tunnel(outside: World) -> None:
    """SNI must be the CONNECT name, on 443 and on any other port that carries TLS."""
    ear = outside.ear()
    outside.ports[443] = ear.port
    backend = outside.backend(allow_names(443, ear.port).build())
    body = f"""{HELLO}
for port in (443, {ear.port}):
    for start in (lambda: tunnel(f"site.test:{{port}}")[0], lambda: socks_name("site.test", port)[0]):
        s = start()
        s.sendall(hello("evil.test"))
        answers.append(everything(s)[:1].hex())
s = tunnel("site.test:443")[0]
s.sendall(hello(None))
answers.append(everything(s)[:1].hex())
"""
    answers, result = talk(backend, body)
    assert answers == ["15"] * 5  # a TLS alert
    rule = "SNI must be the CONNECT name"
    assert denials_by_target(result) == {"site.test:443": rule, f"site.test:{ear.port}": rule}
    assert ear.messages() == [b""] * 5


def test_plain_bytes_where_only_tls_goes(outside: World) -> None:
    ear = outside.ear()
    outside.ports[443] = ear.port
    backend = outside.backend(allow_names(443).build())
    body = """
for start in (lambda: tunnel("site.test:443")[0], lambda: socks_name("site.test", 443)[0]):
    for words in (b"GET / HTTP/1.1\\r\\nHost: site.test\\r\\n\\r\\n", b"SSH-2.0-canary\\r\\n", bytes(600)):
        s = start()
        s.sendall(words)
        answers.append(everything(s).hex())
"""
    answers, result = talk(backend, body)
    assert answers == [""] * 6
    assert denials_by_target(result) == {"site.test:443": "only TLS on this port"}
    assert ear.messages() == [b""] * 6


def test_only_http_on_port_80(outside: World) -> None:
    ear = outside.ear()
    outside.ports[80] = ear.port
    backend = outside.backend(allow_names(80).build())
    body = """
s = tunnel("site.test:80")[0]
s.sendall(b"SSH-2.0-canary\\r\\n\\r\\n")
answers.append(status(everything(s)))
"""
    answers, _ = talk(backend, body)
    assert answers == [400] and ear.messages() == []


SMUGGLED = {
    "another host": "GET http://site.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    "two hosts": "GET http://site.test/ HTTP/1.1\r\nHost: site.test\r\nHost: evil.test\r\n\r\n",
    "user name": "GET http://site.test@evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    "backslash": "GET http://site.test\\@evil.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n",
    "two lengths": "POST http://site.test/ HTTP/1.1\r\nHost: site.test\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "other connect": "CONNECT site.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n",
    "other scheme": "GET ftp://site.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n",
    "file": "GET file:///etc/passwd HTTP/1.1\r\nHost: site.test\r\n\r\n",
}


def test_ambiguous_requests(outside: World, only_site: ProcessBackend) -> None:
    body = f"""
for text in {list(SMUGGLED.values())!r}:
    answers.append(status(everything(to_proxy(text.encode()))))
answers.append(socks_name("site.test", 443, command=2)[1])
answers.append(socks_name("site.test", 443, command=3)[1])
"""
    answers, _ = talk(only_site, body)
    assert answers == [400] * len(SMUGGLED) + [7, 7]
    assert outside.dialled == [] and outside.resolver.asked == []


def test_ambiguous_requests_are_told(only_site: ProcessBackend) -> None:
    _, result = talk(only_site, f"everything(to_proxy({SMUGGLED['another host']!r}.encode()))")
    assert [denial.rule for denial in result.denials] == ["default: ambiguous requests are refused"]


def test_methods_and_paths(outside: World, tmp_path: Path) -> None:
    site = outside.site(tmp_path / "site")
    (site.root / "simple").mkdir()
    (site.root / "simple" / "x").write_text("x")
    builder = SandboxPolicyBuilder().allow_domain("127.0.0.1", [site.port])
    builder = builder.allow_domain("site.test", [site.port], methods=["GET"], path_prefixes=["/simple/"])
    backend = outside.backend(builder.build())
    body = f"""
where = "site.test:{site.port}"
for path in ("/simple/x", "/hello.txt", "/simple/../hello.txt", "/simple/%2e%2e/hello.txt", "/simplex"):
    answers.append(status(request("http://" + where + path)))
answers.append(status(request("http://" + where + "/simple/x", method="POST")))
answers.append(status(tunnel(where)[1]))
"""
    answers, result = talk(backend, body)
    assert answers == [200, *[403] * 6]
    assert denials_by_target(result) == {f"site.test:{site.port}": "rule: site.test"}
    assert len(site.requests) == 1


def test_redirects_are_judged_anew(outside: World, tmp_path: Path) -> None:
    """The client follows them, so they come to the proxy as requests of their own."""
    program("curl")
    site = outside.site(tmp_path / "site")
    backend = outside.backend(allow_names(site.port).build())
    # A directory without its slash is what this server redirects.
    (site.root / "dir").mkdir()
    script = f"""
        curl -sS -L -o /dev/null -w '%{{http_code}}\\n' http://site.test:{site.port}/dir
        curl -sS -L -o /dev/null -w '%{{http_code}}\\n' --connect-to site.test:{site.port}:evil.test:80 --proxytunnel \\
            http://site.test:{site.port}/dir 2>/dev/null || echo refused
        """
    result = run(backend, script, "command")
    assert result.stdout.splitlines()[0] == "200" and result.stdout.endswith("refused\n")
    assert denials_by_target(result) == {"evil.test:80": NOT_ALLOWED}


def test_a_flood_of_refusals_is_not_all_kept(only_site: ProcessBackend) -> None:
    """The guest chooses the names: what the host keeps of them, and gives to a model, has an end."""
    body = """
def many(count):
    for number in range(count):
        s = to_proxy(f"GET http://{number}.{'x' * 60}.test/ HTTP/1.1\\r\\nHost: {number}.{'x' * 60}.test\\r\\n\\r\\n".encode())
        answers.append(status(s.recv(100)))
        s.close()
many(300)
answers = [len(answers), *set(answers)]
"""
    answers, result = talk(only_site, body)
    assert answers == [300, 403]
    assert 0 < len(result.denials) <= 256


def test_blocked_beats_allowed(outside: World, tmp_path: Path) -> None:
    site = outside.site(tmp_path / "site")
    here = f"127.0.0.1:{site.port}"
    outside.resolver.add("bad.site.test").add("good.site.test")
    policy = FetchPolicy((f"*.site.test:{site.port}", here), blocked_domains=("bad.site.test",))
    backend = outside.backend(fetch_policy=policy)
    body = f"""
for name in ("good", "bad"):
    answers.append(status(request(f"http://{{name}}.site.test:{site.port}/hello.txt")))
"""
    answers, result = talk(backend, body)
    assert answers == [200, 403]
    assert denials_by_target(result) == {f"bad.site.test:{site.port}": "blocked_domains: bad.site.test"}


def test_a_guest_that_does_not_wait_for_the_answer(outside: World, only_site: ProcessBackend) -> None:
    """Its request is refused like any other, or never read; what is told about it is the truth."""
    body = """
s = to_proxy(b"CONNECT evil.test:443 HTTP/1.1\\r\\nHost: evil.test:443\\r\\n\\r\\n")
import os
os.write(1, b"[]\\n")
os._exit(0)
"""
    for _ in range(5):
        _, result = talk(only_site, body)
        assert denials_by_target(result) in ({"evil.test:443": NOT_ALLOWED}, {})
    assert outside.dialled == [] and outside.resolver.asked == []
