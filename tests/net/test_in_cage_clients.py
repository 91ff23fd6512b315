"""Programs that people run, inside the cage: what they reach, they reach through the egress proxy.

Every name ends in `.test` and exists only in the proxy's resolver.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import require
from tests.net.clients import has_module, node_with_env_proxy, program, wheel
from tests.net.in_cage import World, allow_names, denials_by_target, run, world

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.types import ExecRequest, ExecResult, Language
from warmcell.languages.config import ProcessConfig
from warmcell.net.proxy.certificate_authority import SandboxAuthority
from warmcell.net.rules.hosts import Host
from warmcell.policy.builder import SandboxPolicyBuilder

NOT_ALLOWED = "default: what is not allowed is denied"


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(monkeypatch) as made:
        yield made


@pytest.fixture(scope="module")
def backend() -> Iterator[ProcessBackend]:
    """One for all: each test sets rules of its own. Its Python is the one that runs the tests, with its packages."""
    config = ProcessConfig(pool_size=0, pool_min=0, python_path=sys.executable)
    with ProcessBackend(config, policy=allow_names(1).build()) as made:
        made.execute_blocking(ExecRequest(Language.PYTHON, "pass", 20))
        yield made


def output(result: ExecResult) -> str:
    assert result.exit_code == 0, (result.exit_code, result.stdout, result.stderr)
    return result.stdout


def allow(backend: ProcessBackend, *ports: int) -> None:
    backend.set_network_rules(allow_names(*ports).build().network_rules)


def test_curl(outside: World, backend: ProcessBackend, tmp_path: Path) -> None:
    program("curl")
    site = outside.site(tmp_path / "site")
    allow(backend, site.port)
    url = f"http://site.test:{site.port}/hello.txt"
    script = f"""
        curl -sSf {url}; echo
        curl -sSf --proxytunnel {url}; echo
        curl -sSf --proxy socks5h://127.0.0.1:3128 {url}; echo
        head -c 3000000 /dev/zero | curl -sSf --data-binary @- {url} | wc -c
        curl -sS -o /dev/null -w '%{{http_code}}\\n' http://evil.test/
        curl -sS --proxy socks5h://127.0.0.1:3128 http://evil.test/ 2>/dev/null || echo $?
        """
    result = run(backend, script, "command")
    hello = "hello from outside"
    assert output(result).split() == [*hello.split() * 3, "3000000", "403", "97"]
    assert denials_by_target(result) == {"evil.test:80": NOT_ALLOWED}
    assert len(site.requests) == 4 and {port for _, port in outside.dialled} == {site.port}
    assert set(outside.resolver.asked) == {"site.test"}


def test_curl_over_tls_end_to_end(
    outside: World, backend: ProcessBackend, authority: SandboxAuthority, tmp_path: Path
) -> None:
    program("curl")
    site = outside.site(tmp_path / "site", authority.context_for(Host("site.test")))
    allow(backend, site.port)
    url = f"https://site.test:{site.port}/hello.txt"
    script = f"""
        printf %s "$CA" > ca.pem
        curl -sSf --cacert ca.pem {url}; echo
        curl -sSf --cacert ca.pem --proxy socks5h://127.0.0.1:3128 {url}; echo
        curl -sS {url} 2>/dev/null || echo "unknown issuer: $?"
        """
    result = run(backend, script, "command", env={"CA": authority.certificate_pem.decode()})
    lines = output(result).splitlines()
    assert lines == ["hello from outside", "hello from outside", "unknown issuer: 60"]
    assert result.denials == []


def test_pip_installs_a_wheel_from_an_index(outside: World, backend: ProcessBackend, tmp_path: Path) -> None:
    require(has_module("pip"), "pip is not installed")
    site = outside.site(tmp_path / "site")
    allow(backend, site.port)
    page = site.root / "simple" / "canarypkg"
    page.mkdir(parents=True)
    name = wheel(page).name
    (page / "index.html").write_text(f'<a href="{name}">{name}</a>')
    code = f"""
import subprocess, sys
where = ["--index-url", "http://site.test:{site.port}/simple", "--trusted-host", "site.test"]
pip = [sys.executable, "-m", "pip", "install", "-q", "--no-cache-dir", "--target", "out"]
subprocess.run([*pip, *where, "canarypkg"], check=True)
sys.path.insert(0, "out")
import canarypkg
print(canarypkg.VALUE)
evil = ["--retries", "0", "--index-url", "http://evil.test/simple", "--trusted-host", "evil.test"]
print(subprocess.run([*pip, *evil, "canarypkg"], capture_output=True).returncode)
"""
    result = run(backend, code, timeout=120)
    assert output(result) == "42\n1\n"
    assert denials_by_target(result) == {"evil.test:80": NOT_ALLOWED}


def repository(root: Path, home: Path) -> None:
    """A bare one that a plain web server can serve."""
    git, source, bare = program("git"), home / "source", root / "repo.git"
    author = ["-c", "user.name=t", "-c", "user.email=t@t.test"]
    for command in (
        [git, "init", "-q", str(source)],
        [git, "-C", str(source), *author, "commit", "-q", "--allow-empty", "-m", "canary commit"],
        [git, "clone", "-q", "--bare", str(source), str(bare)],
        [git, "-C", str(bare), "update-server-info"],
    ):
        environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
        subprocess.run(command, check=True, env=environment, capture_output=True)


def test_git_clones_over_http(outside: World, backend: ProcessBackend, tmp_path: Path) -> None:
    site = outside.site(tmp_path / "site")
    repository(site.root, tmp_path)
    allow(backend, site.port)
    script = f"""
        git clone -q http://site.test:{site.port}/repo.git clone && git -C clone log --format=%s
        git clone -q http://evil.test/repo.git 2>/dev/null || echo refused
        git clone -q ssh://git@site.test/repo.git 2>/dev/null || echo no ssh
        """
    result = run(backend, script, "command")
    assert output(result) == "canary commit\nrefused\nno ssh\n"
    assert denials_by_target(result) == {"evil.test:80": NOT_ALLOWED, "name resolution": "networkRules"}


def test_python_clients(outside: World, backend: ProcessBackend, tmp_path: Path) -> None:
    site = outside.site(tmp_path / "site")
    allow(backend, site.port)
    code = f"""
import importlib.util, urllib.error, urllib.request
url, evil = "http://site.test:{site.port}/hello.txt", "http://evil.test/"
print(urllib.request.urlopen(url).read().decode())
try:
    urllib.request.urlopen(evil)
except urllib.error.HTTPError as error:
    print(error.code, error.headers["X-Warmcell-Error"], "allow evil.test" in error.read().decode())
for name in ("requests", "httpx"):
    if importlib.util.find_spec(name):
        client = __import__(name)
        print(client.get(url).text, client.get(evil).status_code)
    else:
        print("hello from outside 403")
"""
    result = run(backend, code)
    assert output(result).splitlines() == ["hello from outside", "403 refused True", *["hello from outside 403"] * 2]
    assert denials_by_target(result) == {"evil.test:80": NOT_ALLOWED}


@pytest.mark.parametrize("pool_size", [0, 1], ids=["on demand", "warm"])
def test_node_fetch(outside: World, tmp_path: Path, pool_size: int) -> None:
    site = outside.site(tmp_path / "site")
    config = ProcessConfig(pool_size=pool_size, pool_min=0, node_path=node_with_env_proxy())
    backend = outside.backend(allow_names(site.port).build(), config=config)
    code = f"""
        const answer = await fetch('http://site.test:{site.port}/hello.txt')
        console.log(await answer.text())
        try {{ console.log((await fetch('http://evil.test/')).status) }} catch (error) {{ console.log(403) }}
        """
    result = backend.execute_blocking(ExecRequest(Language.JAVASCRIPT, code, 30))
    assert output(result) == "hello from outside\n403\n"
    assert denials_by_target(result) == {"evil.test:80": NOT_ALLOWED}


def test_a_guest_without_processes_of_its_own_has_the_same_way_out(outside: World, tmp_path: Path) -> None:
    site = outside.site(tmp_path / "site")
    builder = SandboxPolicyBuilder().allow_domain("site.test", [site.port]).allow_domain("127.0.0.1", [site.port])
    backend = outside.backend(builder.build())
    code = f"import urllib.request as u; print(u.urlopen('http://site.test:{site.port}/hello.txt').read().decode())"
    result = run(backend, code)
    assert output(result) == "hello from outside\n"
    assert result.enforced.network == "network namespace + proxy"
