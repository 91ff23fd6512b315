"""Rules that change under running guests, guests side by side, what a run leaves behind, and the open network."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.helpers import PATIENCE, eventually
from tests.net.in_cage import TALK, World, allow_names, denials_by_target, descriptors, our_threads, run, world
from tests.net.site import Site

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import EnforcerUnavailable, ExecutionTimeout
from warmcell.core.types import ExecRequest, ExecResult, Language
from warmcell.languages.config import ProcessConfig
from warmcell.net.proxy.forward_request import ProxyLimits
from warmcell.net.rules.fetch_policy import FetchPolicy, RateLimit
from warmcell.policy.builder import SandboxPolicyBuilder

NOT_ALLOWED = "default: what is not allowed is denied"

#: Each line on stdin is one round: an attempt at other.test (anew and on a kept connection), then a mark outside.
ROUNDS = """
import http.client, sys
kept = http.client.HTTPConnection("127.0.0.1", 3128)
def again(name):
    try:
        kept.request("GET", f"http://{name}:{port}/hello.txt")
        answer = kept.getresponse()
        answer.read()
        return answer.status
    except (http.client.HTTPException, OSError) as error:
        kept.close()
        return type(error).__name__
for number, line in enumerate(sys.stdin):
    print(status(request(f"http://other.test:{port}/hello.txt")), again("other.test"), flush=True)
    request(f"http://site.test:{port}/mark-{number}")
"""


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(monkeypatch) as made:
        yield made


@pytest.fixture
def site(outside: World, tmp_path: Path) -> Site:
    return outside.site(tmp_path / "site")


class Rounds:
    """A guest that goes one step for each word from outside."""

    def __init__(self, backend: ProcessBackend, site: Site) -> None:
        self._site = site
        self._number = 0
        reading, self._writing = os.pipe()
        request = ExecRequest(Language.PYTHON, f"{TALK}\nport = {site.port}\n{ROUNDS}", 20)
        self._threads = ThreadPoolExecutor(1)
        self._result = self._threads.submit(backend.execute_blocking, request, stdin=reading)
        self._result.add_done_callback(lambda _: os.close(reading))

    def step(self) -> None:
        os.write(self._writing, b"go\n")
        mark = f"mark-{self._number} "
        assert eventually(lambda: any(mark in line for line, _ in self._site.requests)), self._result
        self._number += 1

    def end(self) -> ExecResult:
        os.close(self._writing)
        with self._threads:
            return self._result.result(20)


def both(site: Site) -> FetchPolicy:
    return FetchPolicy(tuple(f"{name}:{site.port}" for name in ("site.test", "other.test", "127.0.0.1")))


def test_rules_change_under_a_running_guest(outside: World, site: Site) -> None:
    only_site = allow_names(site.port).build()
    backend = outside.backend(only_site)
    guest = Rounds(backend, site)
    guest.step()
    backend.set_network_rules(both(site))
    guest.step()
    backend.set_network_rules(only_site.network_rules)
    guest.step()
    result = guest.end()
    assert result.stdout.splitlines() == ["403 403", "200 200", "403 403"], result.stderr
    assert denials_by_target(result) == {f"other.test:{site.port}": NOT_ALLOWED}
    assert [line.split()[1] for line, _ in site.requests if "hello" in line] == ["/hello.txt"] * 2


def test_changed_rules_hold_for_later_runs_and_waiting_cells(outside: World, site: Site) -> None:
    """A cell that waits already has its listener; the rules are those of the moment in which it runs."""
    backend = outside.backend(allow_names(site.port).build(), config=ProcessConfig(pool_size=2, pool_min=1))
    assert eventually(lambda: backend.ready_cells > 0)
    code = f"{TALK}\nprint(status(request('http://other.test:{site.port}/hello.txt')))"
    backend.set_network_rules(both(site))
    assert backend.execute_blocking(ExecRequest(Language.PYTHON, code, 20)).stdout == "200\n"
    backend.set_network_rules([])
    assert backend.execute_blocking(ExecRequest(Language.PYTHON, code, 20)).stdout == "403\n"


def test_guests_side_by_side_have_their_own_rules(outside: World, site: Site) -> None:
    """Both listeners have the same port number; neither guest is judged by the other's rules."""
    names = ("site.test", "other.test")
    backends = {name: outside.backend(allow_names(site.port, names=[name]).build()) for name in names}
    code = f"{TALK}\nfor name in {names}:\n    print(status(request(f'http://{{name}}:{site.port}/hello.txt')))"
    with ThreadPoolExecutor(4) as threads:
        runs = [
            (name, threads.submit(backends[name].execute_blocking, ExecRequest(Language.PYTHON, code, 20)))
            for name in names * 3
        ]
        for name, ended in runs:
            result = ended.result()
            assert result.stdout.split() == (["200", "403"] if name == "site.test" else ["403", "200"])
            assert len(result.denials) == 1 and name not in denials_by_target(result)
    assert our_threads() == []


def test_a_run_that_is_killed_leaves_nothing(outside: World, site: Site) -> None:
    """Open tunnels, requests half sent, and a guest that never ends."""
    backend = outside.backend(allow_names(site.port).build())
    body = f"""{TALK}
import time
kept = [tunnel("site.test:{site.port}") for _ in range(5)]
kept.append(to_proxy(b"GET http://site.test:{site.port}/ HTTP/1.1\\r\\n"))
kept.append(to_proxy(b"\\x05"))
print("open", flush=True)
time.sleep(60)
"""
    before = descriptors()
    with pytest.raises(ExecutionTimeout) as ended:
        backend.execute_blocking(ExecRequest(Language.PYTHON, body, 4))
    assert our_threads() == []
    assert ended.value.result is not None and ended.value.result.stdout == "open\n"
    assert eventually(lambda: descriptors() <= before), (before, descriptors())


def test_twenty_runs_leave_nothing(outside: World, site: Site) -> None:
    backend = outside.backend(allow_names(site.port).build())
    request = ExecRequest(
        Language.PYTHON, f"{TALK}\nprint(status(request('http://site.test:{site.port}/hello.txt')))", 20
    )
    before, threads = descriptors(), threading.active_count()
    for _ in range(20):
        assert backend.execute_blocking(request).stdout == "200\n"
    assert our_threads() == []
    assert eventually(lambda: descriptors() <= before and threading.active_count() <= threads)


def test_a_guest_with_all_its_connections_open_is_alone_with_that(outside: World, site: Site) -> None:
    """It uses up its own allowance; a guest beside it is served, and nothing stays open."""
    backend = outside.backend(allow_names(site.port).build())
    greedy = f"""{TALK}
import sys
def greeted():
    s = to_proxy(b"\\x05\\x01\\x00")
    assert s.recv(2) == b"\\x05\\x00"
    return s
kept = [greeted() for _ in range({ProxyLimits().connections})]
print("open", flush=True)
sys.stdin.read()
s = to_proxy(b"GET http://site.test:{site.port}/ HTTP/1.1\\r\\nHost: site.test:{site.port}\\r\\n\\r\\n")
print(status(everything(s)))
"""
    modest = f"{TALK}\nprint(status(request('http://site.test:{site.port}/hello.txt')))"
    before = descriptors()
    reading, writing = os.pipe()
    with ThreadPoolExecutor(1) as threads:
        run_of_greedy = threads.submit(
            backend.execute_blocking, ExecRequest(Language.PYTHON, greedy, 20), stdin=reading
        )
        assert eventually(lambda: descriptors() > before + 100)
        assert backend.execute_blocking(ExecRequest(Language.PYTHON, modest, 20)).stdout == "200\n"
        assert descriptors() < before + 200
        os.close(writing)
        assert run_of_greedy.result().stdout == "open\n429\n"
    os.close(reading)
    assert eventually(lambda: descriptors() <= before), (before, descriptors())


def test_a_slow_name_does_not_hold_up_the_end(outside: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest is gone; whoever looks its names up must not keep the run."""

    async def never(name: str, port: int) -> list[str]:
        await asyncio.sleep(300)
        return []

    monkeypatch.setattr("warmcell.net.connect.admission.system_resolver", never)
    backend = outside.backend(allow_names(80).build())
    started = time.monotonic()
    result = run(backend, f"{TALK}\ns = to_proxy(b'GET http://site.test/ HTTP/1.1\\r\\nHost: site.test\\r\\n\\r\\n')")
    assert result.exit_code == 0 and time.monotonic() - started < PATIENCE
    assert outside.dialled == []


def test_rate_limits_hold_across_runs(outside: World, site: Site) -> None:
    """A model that makes many runs has one allowance, not one for each."""
    policy = FetchPolicy((f"site.test:{site.port}", f"127.0.0.1:{site.port}"), rate_limit=RateLimit(3, 1000))
    backend = outside.backend(fetch_policy=policy)
    code = f"{TALK}\nfor _ in range(2):\n    print(status(request('http://site.test:{site.port}/hello.txt')))"
    first, second = (run(backend, code) for _ in range(2))
    assert first.stdout.split() == ["200", "200"]
    assert second.stdout.split() == ["200", "429"]
    assert [denial.rule for denial in second.denials] == ["rate_limit"]


def test_the_whole_network_is_named_as_such(outside: World) -> None:
    ear = outside.ear()
    backend = outside.backend(SandboxPolicyBuilder().allow_network().build())
    code = f"""
import os, socket
socket.create_connection(("127.0.0.1", {ear.port}), 5).sendall(b"canary")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.sendto(b"datagram", ("127.0.0.1", {ear.port}))
print([name for name in os.environ if "proxy" in name.lower()])
"""
    result = run(backend, code)
    assert result.stdout == "[]\n", result.stderr
    assert result.enforced.network is None and result.denials == []
    assert not backend.capabilities().enforced_limits.network_isolation
    assert ear.messages() == [b"canary", b"datagram"]


@pytest.mark.parametrize("enforcer", ["bubblewrap", "landlock", None])
def test_classes_that_cannot_keep_rules_refuse_them(enforcer: str | None) -> None:
    """Rules by name need a network of the guest's own; nobody ignores them in silence."""
    fetch_policy = FetchPolicy(("site.test",))
    request = ExecRequest(Language.PYTHON, "pass", 20)
    with (
        ProcessBackend(enforcer=enforcer, policy=allow_names(80).build()) as by_rules,
        pytest.raises(EnforcerUnavailable),
    ):
        by_rules.execute_blocking(request)
    with ProcessBackend(enforcer=enforcer, fetch_policy=fetch_policy) as by_policy, pytest.raises(EnforcerUnavailable):
        by_policy.execute_blocking(request)
