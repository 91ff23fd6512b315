"""Narrowing the rules of a sandbox: decisions as a table, and what `update_network` accepts."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import ExitStack
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.net.servers import policy_for, reply, serving

from warmcell.backends.process.egress import Egress
from warmcell.core.errors import FetchFailed, InvalidRequest, PolicyViolation
from warmcell.net.connect.connection_log import ConnectionLog
from warmcell.net.credentials import SecretRef
from warmcell.net.fetch.safe_client import SafeClient
from warmcell.net.rules.fetch_policy import FetchPolicy, RateLimit
from warmcell.net.rules.hosts import parse_host
from warmcell.net.rules.network_update import check_update, from_plain, read_lists, read_update, to_plain
from warmcell.net.rules.rule_book import EgressRequest, Narrowing, RuleBook, compile_rules
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import NetworkRule, SandboxPolicy
from warmcell.sandbox.local.context import Fetcher, LocalNetwork

MADE_WITH = FetchPolicy(("*.site.test", "site.test:8080", "other.test", "127.0.0.1:9"))


def is_allowed(narrowing: Narrowing, where: str, method: str | None = None, path: str | None = None) -> bool:
    name, _, port = where.rpartition(":")
    book = replace(compile_rules(MADE_WITH), narrowing=narrowing)
    return book.judge(EgressRequest(parse_host(name), int(port), method, path)).allowed


@pytest.mark.parametrize(
    ("update", "allowed", "refused"),
    [
        ([], "", "a.site.test:443 site.test:8080 other.test:80 127.0.0.1:9"),
        (["other.test"], "other.test:80 other.test:443", "a.site.test:443 other.test:22 127.0.0.1:9"),
        (["other.test:443"], "other.test:443", "other.test:80"),
        (["*"], "a.site.test:443 other.test:80", "evil.test:443 127.0.0.1:9 site.test:443"),
        (["*.test"], "a.site.test:80 other.test:80", "evil.test:80"),
        ([NetworkRule("a.site.test", (443,))], "a.site.test:443", "a.site.test:80 b.site.test:443"),
        (SandboxPolicy(), "", "other.test:80"),
        (SandboxPolicy(allow_network=True), "other.test:80 127.0.0.1:9", "evil.test:80"),
        (SandboxPolicyBuilder().allow_domain("other.test").build(), "other.test:443", "a.site.test:443"),
        (FetchPolicy(("*",), blocked_domains=("other.test",)), "a.site.test:80", "other.test:80 evil.test:80"),
        (FetchPolicy(("*", "site.test:8080"), allowed_ports=()), "site.test:8080", "other.test:80 a.site.test:443"),
    ],
)
def test_never_more_than_before_and_never_more_than_asked(update: Any, allowed: str, refused: str) -> None:
    narrowing = read_update(update)
    again = json.loads(json.dumps(to_plain(narrowing)))
    for each in (narrowing, from_plain(**again)):
        assert [where for where in allowed.split() if not is_allowed(each, where)] == []
        assert [where for where in refused.split() if is_allowed(each, where)] == []


def test_methods_and_paths_narrow_too() -> None:
    narrowing = read_update([NetworkRule("other.test", (80,), ("GET",), ("/simple/",))])
    assert is_allowed(narrowing, "other.test:80", "GET", "/simple/x")
    assert not is_allowed(narrowing, "other.test:80", "POST", "/simple/x")
    assert not is_allowed(narrowing, "other.test:80", "GET", "/other")
    assert not is_allowed(narrowing, "other.test:80")  # a tunnel hides both


@pytest.mark.parametrize(
    ("allow", "deny", "allowed", "refused"),
    [
        (None, None, "other.test:80 127.0.0.1:9", "evil.test:80"),
        (None, ["other.test"], "a.site.test:443", "other.test:80"),
        (["other.test"], ["0.0.0.0/0"], "other.test:80", "a.site.test:443 127.0.0.1:9"),
        ([], ["::/0"], "", "other.test:80"),
        (["0.0.0.0/0"], ["0.0.0.0/0"], "other.test:80", "evil.test:80"),
        (["evil.test"], None, "other.test:80", "evil.test:80"),
    ],
)
def test_the_lists_of_e2b(allow: Any, deny: Any, allowed: str, refused: str) -> None:
    narrowing = read_lists(allow, deny)
    assert all(is_allowed(narrowing, where) for where in allowed.split())
    assert not any(is_allowed(narrowing, where) for where in refused.split())


def test_a_denied_address_is_denied_to_names_as_well() -> None:
    narrowing = read_lists(None, ["10.0.0.1"])
    address = parse_host("10.0.0.1").address
    assert address is not None and narrowing.judge_address(address, 80, lambda _: False) is not None
    book = RuleBook(compile_rules(FetchPolicy(("*",), deny_private_ips=False)).allow, (), True, (), narrowing)
    assert not book.judge_address(address, 80, lambda _: False).allowed


def test_a_new_rate_limit_holds_for_guests_that_run_already() -> None:
    egress = Egress(FetchPolicy(("site.test",), rate_limit=RateLimit(5)))
    cell: Any = SimpleNamespace(take_listener=lambda: socket.create_server(("127.0.0.1", 0)))
    with ExitStack() as cleanup:
        egress.open(cell, print, cleanup)
        (proxy,) = egress._open
        egress.set_rules(FetchPolicy(("site.test",), rate_limit=RateLimit(1)))
        assert [proxy._gate.limiter.admit("site.test") for _ in range(2)] == [True, False]
        assert not egress._shared_limiter().admit("site.test")  # one allowance for this run and the next


@pytest.mark.parametrize("update", [None, "site.test", b"x", 7, [7], ["https://site.test/"], ["a b"]])
def test_what_is_not_a_list_of_rules(update: Any) -> None:
    with pytest.raises((InvalidRequest, PolicyViolation)):
        read_update(update)


#: A value of each field, and what an update with it denies of `_WIDE`; None: such an update is refused.
_FIELDS: dict[str, tuple[Any, str | None]] = {
    "allowed_domains": (("a.test",), "b.test:443"),
    "blocked_domains": (("a.test",), "a.test:443"),
    "deny_private_ips": (True, "a.test:443"),
    "allowed_methods": (("POST",), "a.test:443"),
    "allowed_ports": ((80,), "a.test:443"),
    "rules": ((NetworkRule("a.test"),), "b.test:443"),
    "request_timeout": (1.0, None),
    "max_redirects": (1, None),
    "max_body_bytes": (1, None),
    "rate_limit": (1, None),
    "inject": ({"a.test": {"X-Key": SecretRef("KEY")}}, None),
}
_WIDE = compile_rules(FetchPolicy(("*",), deny_private_ips=False))


def is_dialled(narrowing: Narrowing | None, where: str) -> bool:
    """Whether a GET is allowed whose name resolves to a private address."""
    book, address = replace(_WIDE, narrowing=narrowing), parse_host("10.0.0.1").address
    name, _, port = where.rpartition(":")
    request = EgressRequest(parse_host(name), int(port), "GET", "/")
    assert address is not None
    return book.judge(request).allowed and book.judge_address(address, int(port), lambda _: False).allowed


@pytest.mark.parametrize("name", [field.name for field in fields(FetchPolicy)])
def test_every_field_of_a_policy_narrows_or_is_refused(name: str) -> None:
    value, denied = _FIELDS[name]
    names: dict[str, Any] = {} if name == "rules" else {"allowed_domains": ("*",)}
    update = FetchPolicy(**({"deny_private_ips": False} | names | {name: value}))
    if denied is None:
        with pytest.raises(InvalidRequest, match=name):
            read_update(update)
        return
    narrowing = read_update(update)
    for each in (narrowing, from_plain(**json.loads(json.dumps(to_plain(narrowing))))):
        assert (is_dialled(None, denied), is_dialled(each, denied)) == (True, False)


def test_an_address_that_the_update_names_stays_open() -> None:
    assert is_dialled(read_update(FetchPolicy(("*", "10.0.0.1"))), "a.test:443")


@pytest.mark.parametrize("deny", [["10.0.0.0/8"], ["a.test"]])
def test_lists_that_would_be_misunderstood(deny: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="only if denyOut denies all traffic"):
        read_lists(["b.test"], deny)


def test_a_host_that_the_policy_does_not_name_is_refused_at_once() -> None:
    book = compile_rules(MADE_WITH)
    for name in ("evil.test", "127.0.0.2", "other.test:22", "site.test:80"):
        with pytest.raises(PolicyViolation, match="not in the policy"):
            check_update(read_update([name]), book)
    check_update(read_update(["a.site.test", "site.test", "127.0.0.1", "*.evil.test"]), book)


async def test_an_update_holds_for_names_that_are_being_looked_up() -> None:
    """An address that it denies is not known yet when it closes the open connections."""
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def resolve_slowly(name: str, port: int) -> list[str]:
        is_asked.set()
        await may_answer.wait()
        return ["127.0.0.1"]

    log, narrowing = ConnectionLog(), read_lists(None, ["127.0.0.1"])
    async with serving(reply()) as server:
        client = SafeClient(policy_for(server), resolver=resolve_slowly, log=log)
        fetching = asyncio.create_task(client.fetch(f"http://site.test:{server.port}/"))
        await is_asked.wait()
        client.narrow(narrowing)
        await asyncio.to_thread(log.cut, narrowing)
        may_answer.set()
        with pytest.raises(FetchFailed, match="blocked"):
            await fetching
    assert server.connections == 0


async def test_an_update_holds_for_guests_that_an_install_has_replaced() -> None:
    """Their runs go on, with the rules of the sandbox."""
    guests: list[Any] = [SimpleNamespace(egress=Egress(MADE_WITH))]
    network = LocalNetwork(Fetcher(None), lambda: guests[-1])
    network.attach()
    guests.append(SimpleNamespace(egress=Egress(MADE_WITH)))
    network.attach()
    await network.update([])
    request = EgressRequest(parse_host("other.test"), 443, None, None)
    assert [guest.egress._current_book().judge(request).allowed for guest in guests] == [False, False]
    await network.update(["other.test"])
    assert [guest.egress._current_book().judge(request).allowed for guest in guests] == [True, True]
