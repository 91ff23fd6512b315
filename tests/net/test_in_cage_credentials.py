"""Credentials that a caged guest uses and never has: the server sees them, nothing inside the cage does."""

from __future__ import annotations

import base64
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.net.clients import has_module, make_repository, node_with_env_proxy, program
from tests.net.in_cage import TALK, World, run, world
from tests.net.site import Site

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.types import ExecRequest, ExecResult, Language
from warmcell.languages.config import ProcessConfig
from warmcell.net.credentials import SecretRef
from warmcell.net.proxy.certificate_authority import SandboxAuthority
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.hosts import Host

SECRET = "canary-s3cr3t-value-0123456789"
HEADER = f"Bearer {SECRET}"

#: Looks for the secret's halves everywhere a guest can look. Halves, so that the payload does not hold it.
LOOK = """
import os, sys
def readable():
    yield "environ", repr(os.environb).encode()
    for pid in ("self", "1", str(os.getppid())):
        for part in ("environ", "cmdline", "maps"):
            try:
                yield f"/proc/{pid}/{part}", open(f"/proc/{pid}/{part}", "rb").read()
            except OSError:
                pass
    for top in ("/code", "/work", "/tmp", "/home", "/run", "/etc", "/var", "/dev/shm"):
        for folder, folders, names in os.walk(top):
            # The interpreter that the test itself asked for: its packages' manuals show what private keys look like.
            folders[:] = [name for name in folders if os.path.join(folder, name) != sys.prefix]
            for name in names:
                path = os.path.join(folder, name)
                try:
                    if os.path.isfile(path):
                        yield path, open(path, "rb").read(4_000_000)
                except OSError:
                    pass
needle = ("canary-s3cr" + "3t-value").encode()
places = list(readable())
print("places", len(places) > 5, [where for where, data in places if needle in data])
keys = [where for where, data in places if b"PRIVATE " + b"KEY" in data and where.startswith(("/code", "/work", "/home"))]
print("keys", keys)
"""


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, client_tls: ssl.SSLContext) -> Iterator[World]:
    monkeypatch.setattr("warmcell.net.proxy.egress_proxy.client_tls", lambda: client_tls)
    monkeypatch.setenv("CANARY_TOKEN", SECRET)
    with world(monkeypatch) as made:
        yield made


def policy(*sites: Site, inject: str = "http://site.test") -> FetchPolicy:
    domains = [f"{name}:{site.port}" for name in ("site.test", "other.test", "127.0.0.1") for site in sites]
    secret = SecretRef.env("CANARY_TOKEN", format="Bearer {}")
    return FetchPolicy(tuple(domains), inject={inject: {"Authorization": secret}})


def authorization_headers(site: Site) -> list[str | None]:
    return [headers.get("Authorization") for _, headers in site.requests]


def check_unseen(result: ExecResult) -> None:
    for text in (result.stdout, result.stderr, repr(result.denials), repr(result)):
        assert SECRET not in text and SECRET[:19] not in text


def test_plain_http(outside: World, tmp_path: Path) -> None:
    site = outside.site(tmp_path / "site")
    (site.root / "echo.txt").write_text(f"you sent {HEADER}")
    backend = outside.backend(fetch_policy=policy(site))
    url = f"http://site.test:{site.port}/echo.txt"
    code = f"""{LOOK}
import subprocess, urllib.request
print(urllib.request.urlopen(urllib.request.Request("{url}", headers={{"Authorization": "mine"}})).read().decode())
print(subprocess.run(["curl", "-sS", "{url}"], capture_output=True, text=True).stdout)
print(urllib.request.urlopen("{url.replace("site.test", "other.test")}").read().decode().startswith("you sent"))
"""
    program("curl")
    result = run(backend, code)
    assert result.stdout.splitlines() == [
        "places True []",
        "keys []",
        *["you sent Bearer [redacted]"] * 2,
        "True",
    ], result.stderr
    assert authorization_headers(site) == [HEADER, HEADER, None]


@pytest.mark.attack("S2-07")
def test_a_guest_cannot_have_it_sent_in_the_clear(outside: World, tmp_path: Path) -> None:
    """Neither by naming the port of the rule in an http URL, nor through a tunnel in which it speaks plain HTTP."""
    site = outside.site(tmp_path / "site")
    outside.ports[443] = outside.ports[80] = site.port
    secret = {"Authorization": SecretRef.env("CANARY_TOKEN", format="Bearer {}")}
    domains = ("site.test:443", "site.test:80", "127.0.0.1:443", "127.0.0.1:80")
    backend = outside.backend(fetch_policy=FetchPolicy(domains, inject={"site.test": secret}))
    code = f"""{TALK}
plain = b"GET /hello.txt HTTP/1.1\\r\\nHost: site.test\\r\\nConnection: close\\r\\n\\r\\n"
print(status(request("http://site.test:443/hello.txt")), status(request("http://site.test/hello.txt")))
for where in ("site.test:443", "site.test:80"):
    s, answer = tunnel(where)
    s.sendall(plain)
    print(b"hello from outside" in everything(s))
"""
    result = run(backend, code)
    assert result.stdout == "403 403\nFalse\nFalse\n", result.stderr
    assert site.requests == []
    check_unseen(result)


def test_tls_through_the_sandboxes_own_authority(outside: World, authority: SandboxAuthority, tmp_path: Path) -> None:
    program("curl")
    site = outside.site(tmp_path / "site", authority.context_for(Host("site.test")))
    (site.root / "echo.txt").write_text(f"you sent {HEADER}")
    config = ProcessConfig(pool_size=0, pool_min=0, python_path=sys.executable)
    backend = outside.backend(fetch_policy=policy(site, inject="site.test"), config=config)
    url = f"https://site.test:{site.port}/echo.txt"
    code = f"""{LOOK}
import os, subprocess, urllib.request
roots = open(os.environ["SSL_CERT_FILE"]).read().count("BEGIN CERT")
print(roots, open(os.environ["NODE_EXTRA_CA_CERTS"]).read().count("BEGIN CERT"))
print(urllib.request.urlopen("{url}").read().decode())
print(subprocess.run(["curl", "-sS", "{url}"], capture_output=True, text=True).stdout)
if {has_module("requests")}:
    import requests
    print(requests.get("{url}").text)
"""
    result = run(backend, code)
    clients = 2 + has_module("requests")
    roots = len(ssl.create_default_context().get_ca_certs())
    expected = ["places True []", "keys []", f"{roots + 1} 1", *["you sent Bearer [redacted]"] * clients]
    assert result.stdout.splitlines() == expected, result.stderr
    assert authorization_headers(site) == [HEADER] * clients
    check_unseen(result)


def test_git_clones_over_https_with_a_password_that_is_not_in_the_cage(
    outside: World, authority: SandboxAuthority, tmp_path: Path
) -> None:
    git = program("git")
    expected = "Basic " + base64.b64encode(f"x-access-token:{SECRET}".encode()).decode()
    site = outside.site(tmp_path / "site", authority.context_for(Host("site.test")))
    make_repository(git, tmp_path / "source", site.root / "repo.git")
    inject = {"site.test": {"Authorization": SecretRef.basic("x-access-token", SecretRef.env("CANARY_TOKEN"))}}
    domains = tuple(f"{name}:{site.port}" for name in ("site.test", "127.0.0.1"))
    backend = outside.backend(fetch_policy=FetchPolicy(domains, inject=inject))
    script = f"""
        git clone -q https://site.test:{site.port}/repo.git clone && git -C clone log --format=%s
        git -C clone config --list | grep -i -E 'token|credential|extraheader' || echo nothing kept
        """
    result = run(backend, script, "command")
    assert result.stdout == "canary commit\nnothing kept\n", result.stderr
    assert set(authorization_headers(site)) == {expected}
    check_unseen(result)


def test_node_trusts_the_authority_too(outside: World, authority: SandboxAuthority, tmp_path: Path) -> None:
    site = outside.site(tmp_path / "site", authority.context_for(Host("site.test")))
    config = ProcessConfig(pool_size=0, pool_min=0, node_path=node_with_env_proxy())
    backend = outside.backend(fetch_policy=policy(site, inject="site.test"), config=config)
    code = f"console.log(await (await fetch('https://site.test:{site.port}/hello.txt')).text())"
    result = run(backend, code, "javascript")
    assert result.stdout == "hello from outside\n", result.stderr
    assert authorization_headers(site) == [HEADER]


def test_other_hosts_stay_end_to_end(outside: World, authority: SandboxAuthority, tmp_path: Path) -> None:
    """The guest sees the server's own certificate, and the credential does not go there."""
    site = outside.site(tmp_path / "site", authority.context_for(Host("other.test")))
    backend = outside.backend(fetch_policy=policy(site))
    script = f"""
        curl -sS https://other.test:{site.port}/hello.txt 2>/dev/null || echo "own roots: $?"
        printf %s "$CA" > ca.pem
        curl -sS --cacert ca.pem https://other.test:{site.port}/hello.txt
        """
    result = run(backend, script, "command", env={"CA": authority.certificate_pem.decode()})
    assert result.stdout == "own roots: 60\nhello from outside", result.stderr
    assert authorization_headers(site) == [None]


def test_a_secret_that_cannot_be_read_stops_the_request(
    outside: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = outside.site(tmp_path / "site")
    backend = outside.backend(fetch_policy=policy(site))
    monkeypatch.delenv("CANARY_TOKEN")
    result = run(backend, f"{TALK}\nprint(request('http://site.test:{site.port}/hello.txt').decode())")
    assert "400 Bad Request" in result.stdout and "hello" not in result.stdout
    assert site.requests == []


def test_the_proxys_memory_is_out_of_reach(outside: World, tmp_path: Path) -> None:
    """The process that holds the secret is not even visible."""
    site = outside.site(tmp_path / "site")
    backend = outside.backend(fetch_policy=policy(site))
    code = f"""{TALK}
import os
request("http://site.test:{site.port}/hello.txt")
print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit()) == [1, os.getpid()], os.getppid() in (0, 1))
for path in ("/proc/1/mem", "/proc/1/fd", "/proc/1/environ"):
    try:
        print(path, os.listdir(path) if path.endswith("fd") else len(open(path, "rb").read(100)))
    except OSError as error:
        print("refused")
"""
    result = run(backend, code)
    assert result.stdout.splitlines() == ["True True", "refused", "refused", "refused"], result.stdout + result.stderr
    assert authorization_headers(site) == [HEADER]


def test_credentials_for_hosts_that_new_rules_name(outside: World, authority: SandboxAuthority, tmp_path: Path) -> None:
    """The authority follows the rules: the next run's TLS to the newly named host carries the credential."""
    site = outside.site(tmp_path / "site", authority.context_for(Host("other.test")))
    backend = outside.backend(fetch_policy=policy(site))
    backend.set_network_rules(policy(site, inject="other.test"))
    result = run(backend, f"curl -sS https://other.test:{site.port}/hello.txt", "command")
    assert result.stdout == "hello from outside", result.stderr
    assert authorization_headers(site) == [HEADER]


def test_credentials_that_new_rules_take_away(outside: World, tmp_path: Path) -> None:
    site = outside.site(tmp_path / "site")
    backend = outside.backend(fetch_policy=policy(site))
    url = f"http://site.test:{site.port}/hello.txt"
    run(backend, f"curl -sS {url}", "command")
    backend.set_network_rules(FetchPolicy((f"site.test:{site.port}", f"127.0.0.1:{site.port}")))
    result = run(backend, f"curl -sS {url}; echo; echo ${{SSL_CERT_FILE:-none}}", "command")
    assert result.stdout.split("\n")[1] == "none"
    assert authorization_headers(site) == [HEADER, None]


def test_the_secret_is_in_no_error(outside: World, tmp_path: Path) -> None:
    """Also when the server answers with nonsense that quotes it."""
    ear = outside.ear()
    domains = (f"site.test:{ear.port}", f"127.0.0.1:{ear.port}")
    secret = {"Authorization": SecretRef(lambda: SECRET, format="Bearer {}")}
    with ProcessBackend(
        ProcessConfig(pool_size=0), fetch_policy=FetchPolicy(domains, inject={"http://site.test": secret})
    ) as backend:
        code = f"""{TALK}
s = to_proxy(b"GET http://site.test:{ear.port}/ HTTP/1.1\\r\\nHost: site.test:{ear.port}\\r\\n\\r\\n")
s.settimeout(3)
print(everything(s))
"""
        result = backend.execute_blocking(ExecRequest(Language.PYTHON, code, 20))
    check_unseen(result)
    assert [HEADER.encode() in words for words in ear.messages()] == [True]
    assert SECRET not in repr(backend) and SECRET not in repr(vars(backend._launcher.egress))
