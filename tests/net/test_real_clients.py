"""The programs that people run, as ordinary processes that have nothing but the proxy's environment.

Every name here ends in `.test` and exists only in the proxy's resolver: what works, works through the proxy.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.net.clients import has_module, make_repository, node_with_env_proxy, program, wheel
from tests.net.conftest import Proxies
from tests.net.servers import StubResolver
from tests.net.site import Site

from warmcell.net.credentials import SecretRef
from warmcell.net.proxy.certificate_authority import SandboxAuthority
from warmcell.net.proxy.egress_proxy import EgressProxy, authority_environment, proxy_environment
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.hosts import Host

Start = Callable[..., EgressProxy]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    root = tmp_path / "site"
    root.mkdir()
    (root / "hello.txt").write_text("hello through the proxy")
    made = Site(root)
    yield made
    made.close()


def run(command: list[str], proxy: EgressProxy, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(cwd),
        "LANG": "C.UTF-8",
        **proxy_environment(proxy.port),
        **env,
    }
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


def test_curl(site: Site, start_proxy: Start, proxies: Proxies, tmp_path: Path) -> None:
    proxy = start_proxy(site.policy)
    curl = [program("curl"), "-sS", "-f"]
    url = f"http://site.test:{site.port}/hello.txt"
    assert run([*curl, url], proxy, tmp_path).stdout == "hello through the proxy"
    big = tmp_path / "big"
    big.write_bytes(b"x" * 3_000_000)
    assert len(run([*curl, "--data-binary", "@big", url], proxy, tmp_path).stdout) == 3_000_000
    socks = run([*curl, "--proxy", f"socks5h://127.0.0.1:{proxy.port}", url], proxy, tmp_path)
    assert socks.stdout == "hello through the proxy"
    tunnel = run([*curl, "--proxytunnel", url], proxy, tmp_path)
    assert tunnel.stdout == "hello through the proxy"
    assert proxies.denials == []
    denied = run([*curl, "http://evil.test/"], proxy, tmp_path)
    assert denied.returncode == 22 and "403" in denied.stderr
    local = run([*curl, "--noproxy", "", f"http://localhost:{site.port}/hello.txt"], proxy, tmp_path)
    assert local.returncode == 22
    assert [denial.what for denial in proxies.denials] == ["evil.test:80", f"localhost:{site.port}"]


def test_curl_over_tls_end_to_end(
    authority: SandboxAuthority, start_proxy: Start, proxies: Proxies, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "hello.txt").write_text("hello inside TLS")
    (tmp_path / "ca.pem").write_bytes(authority.certificate_pem)
    site = Site(tmp_path / "site", authority.context_for(Host("site.test")))
    try:
        proxy = start_proxy(site.policy)
        url = f"https://site.test:{site.port}/hello.txt"
        curl = [program("curl"), "-sS", "--cacert", "ca.pem"]
        for how in ([], ["--proxy", f"socks5h://127.0.0.1:{proxy.port}"]):
            assert run([*curl, *how, url], proxy, tmp_path).stdout == "hello inside TLS"
        # Another name for the same tunnel: what domain fronting is.
        fronted = [*curl, "-k", "--connect-to", f"evil.test:{site.port}:site.test:{site.port}"]
        assert run([*fronted, f"https://evil.test:{site.port}/hello.txt"], proxy, tmp_path).returncode != 0
    finally:
        site.close()
    assert [denial.rule for denial in proxies.denials] == ["SNI must be the CONNECT name"]


def test_pip_installs_a_wheel_from_an_index(site: Site, start_proxy: Start, proxies: Proxies, tmp_path: Path) -> None:
    page = site.root / "simple" / "canarypkg"
    page.mkdir(parents=True)
    name = wheel(page).name
    (page / "index.html").write_text(f'<a href="{name}">{name}</a>')
    proxy = start_proxy(site.policy)
    index = ["--index-url", f"http://site.test:{site.port}/simple", "--trusted-host", "site.test"]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-cache-dir", "--target", "out", *index, "canarypkg"]
    ended = run(command, proxy, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out" / "canarypkg.py").read_text() == "VALUE = 42\n"
    assert proxies.denials == []


def test_git_clones_over_http(site: Site, start_proxy: Start, proxies: Proxies, tmp_path: Path) -> None:
    git = program("git")
    make_repository(git, tmp_path / "source", site.root / "repo.git")
    proxy = start_proxy(site.policy)
    ended = run([git, "clone", "-q", f"http://site.test:{site.port}/repo.git", "clone"], proxy, tmp_path)
    assert ended.returncode == 0, ended.stderr
    log = run([git, "-C", "clone", "log", "--format=%s"], proxy, tmp_path)
    assert log.stdout.strip() == "canary commit"
    assert run([git, "clone", "-q", "http://evil.test/repo.git"], proxy, tmp_path).returncode != 0
    assert {denial.what for denial in proxies.denials} == {"evil.test:80"}


def test_requests(site: Site, start_proxy: Start, tmp_path: Path) -> None:
    pytest.importorskip("requests")
    code = (
        "import requests, sys\n"
        f"print(requests.get('http://site.test:{site.port}/hello.txt').text)\n"
        "print(requests.get('http://evil.test/').status_code)\n"
    )
    ended = run([sys.executable, "-c", code], start_proxy(site.policy), tmp_path)
    assert ended.stdout.split("\n")[:2] == ["hello through the proxy", "403"], ended.stderr


def test_httpx_starts_and_works(site: Site, start_proxy: Start, tmp_path: Path) -> None:
    """httpx refuses to start where ALL_PROXY names a SOCKS proxy and an extra package is missing."""
    pytest.importorskip("httpx")
    code = f"import httpx; print(httpx.get('http://site.test:{site.port}/hello.txt').text)"
    ended = run([sys.executable, "-c", code], start_proxy(site.policy), tmp_path)
    assert ended.stdout.strip() == "hello through the proxy", ended.stderr


def test_urllib(site: Site, start_proxy: Start, tmp_path: Path) -> None:
    code = f"import urllib.request; print(urllib.request.urlopen('http://site.test:{site.port}/hello.txt').read().decode())"
    ended = run([sys.executable, "-c", code], start_proxy(site.policy), tmp_path)
    assert ended.stdout.strip() == "hello through the proxy", ended.stderr


def npm() -> list[str]:
    """The packaged npm, or the system's."""
    node = Path(node_with_env_proxy())
    packaged = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(node), str(packaged)] if packaged.exists() else [program("npm")]


def test_node_fetch(site: Site, start_proxy: Start, proxies: Proxies, tmp_path: Path) -> None:
    code = (
        f"const a = await fetch('http://site.test:{site.port}/hello.txt'); console.log(await a.text());"
        "try { const b = await fetch('http://evil.test/'); console.log(b.status) } catch (e) { console.log('denied') }"
    )
    command = [node_with_env_proxy(), "--input-type=module", "-e", code]
    ended = run(command, start_proxy(site.policy), tmp_path)
    lines = ended.stdout.split("\n")
    assert lines[0] == "hello through the proxy", ended.stderr
    assert lines[1] in ("403", "denied")
    assert proxies.denials[-1].what == "evil.test:80"


def test_npm_reaches_its_registry(site: Site, start_proxy: Start, tmp_path: Path) -> None:
    (site.root / "canarypkg").write_text(
        '{"name": "canarypkg", "dist-tags": {"latest": "1.2.3"}, "versions": {"1.2.3": {}}}'
    )
    proxy = start_proxy(site.policy)
    command = [*npm(), "view", "canarypkg", "dist-tags.latest", "--registry", f"http://site.test:{site.port}/"]
    ended = run(command, proxy, tmp_path)
    assert ended.stdout.strip() == "1.2.3", ended.stderr


SECRET = "canary-s3cr3t-value"


def test_https_clients_trust_the_sandbox_ca_and_never_see_the_credential(
    authority: SandboxAuthority, start_proxy: Start, resolver: StubResolver, tmp_path: Path, client_tls: object
) -> None:
    root = tmp_path / "site"
    root.mkdir()
    (root / "hello.txt").write_text(f"hello, {SECRET}")
    site = Site(root, authority.context_for(Host("site.test")))
    inject = {"site.test": {"Authorization": SecretRef(lambda: SECRET, format="Bearer {}")}}
    policy = FetchPolicy((f"site.test:{site.port}", f"127.0.0.1:{site.port}"), inject=inject)
    own = SandboxAuthority.for_policy(policy)
    (tmp_path / "ca.pem").write_bytes(own.certificate_pem)
    (tmp_path / "bundle.pem").write_bytes(own.bundle_pem())
    trust = authority_environment(str(tmp_path / "bundle.pem"), str(tmp_path / "ca.pem"))
    proxy = start_proxy(policy, authority=own, ssl_context=client_tls)
    url = f"https://site.test:{site.port}/hello.txt"
    try:
        commands = [
            [program("curl"), "-sS", url],
            [sys.executable, "-c", f"import urllib.request as u; print(u.urlopen('{url}').read().decode())"],
        ]
        if has_module("requests"):
            commands.append([sys.executable, "-c", f"import requests; print(requests.get('{url}').text)"])
        commands.append([node_with_env_proxy(), "-e", f"fetch('{url}').then(r => r.text()).then(console.log)"])
        for command in commands:
            ended = run(command, proxy, tmp_path, **trust)
            assert ended.stdout.strip() == "hello, [redacted]", (command, ended.stderr)
    finally:
        site.close()
    assert len(site.requests) == len(commands)
    assert all(headers["Authorization"] == f"Bearer {SECRET}" for _, headers in site.requests)


async def test_many_clients_at_once(site: Site, start_proxy: Start, tmp_path: Path) -> None:
    proxy = start_proxy(site.policy)
    curl = program("curl")
    url = f"http://site.test:{site.port}/hello.txt"
    environment = {"PATH": os.environ["PATH"], **proxy_environment(proxy.port)}

    async def one() -> bytes:
        process = await asyncio.create_subprocess_exec(
            curl, "-sS", url, stdout=asyncio.subprocess.PIPE, env=environment
        )
        return (await process.communicate())[0]

    assert set(await asyncio.gather(*[one() for _ in range(12)])) == {b"hello through the proxy"}
