"""The rule book: every decision, and the rule that it names."""

from __future__ import annotations

import ipaddress

import pytest

from warmcell.core.errors import PolicyViolation
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.hosts import parse_host
from warmcell.net.rules.rule_book import Decision, EgressRequest, RuleBook, compile_rules
from warmcell.policy.model import NetworkRule


def ask(url: str, port: int = 443, method: str | None = "GET", path: str | None = "/") -> EgressRequest:
    return EgressRequest(parse_host(url), port, method, path)


def judge(policy: FetchPolicy, host: str, port: int = 443, **more: str | None) -> Decision:
    return compile_rules(policy).judge(ask(host, port, **more))


@pytest.mark.attack("NW-08")
@pytest.mark.parametrize(
    "policy",
    [
        None,
        [],
        FetchPolicy(),
        FetchPolicy(allowed_domains=()),
        FetchPolicy(allowed_domains=[]),  # type: ignore[arg-type]
        FetchPolicy(allowed_domains=None),  # type: ignore[arg-type]
        FetchPolicy(rules=(), deny_private_ips=False),
        FetchPolicy(blocked_domains=("evil.com",)),
    ],
)
def test_an_empty_or_missing_allow_list_allows_nothing(policy: FetchPolicy | None) -> None:
    book = compile_rules(policy)
    for host in ("example.com", "localhost", "127.0.0.1", "[::1]", "evil.com"):
        assert not book.judge(ask(host)).allowed
        assert not book.judge(EgressRequest(parse_host(host), 80)).allowed


@pytest.mark.attack("SS-12")
@pytest.mark.parametrize(
    ("pattern", "host", "expected"),
    [
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "A.EXAMPLE.COM.", True),
        ("*.Example.COM.", "a.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "evilexample.com", False),
        ("*.example.com", "example.com.evil.com", False),
        ("*.example.com", "aexample.com", False),
        ("example.com", "example.com.", True),
        ("example.com.", "EXAMPLE.com", True),
        ("example.com", "a.example.com", False),
        ("example.com", "example.com.evil.com", False),
        ("*", "anything.example", True),
        ("*", "8.8.8.8", False),
        ("*.8.8", "8.8.8.8", False),
        ("bücher.example", "xn--bcher-kva.example", True),
        ("BÜCHER.example", "bücher.example", True),
        ("*.xn--bcher-kva.example", "a.bücher.example", True),
    ],
)
def test_names(pattern: str, host: str, expected: bool) -> None:
    if pattern == "*.8.8":
        with pytest.raises(PolicyViolation):
            FetchPolicy(allowed_domains=(pattern,))
        return
    decision = judge(FetchPolicy(allowed_domains=(pattern,)), host)
    assert decision.allowed is expected
    assert decision.rule == (f"allowed_domains: {pattern}" if expected else "default: what is not allowed is denied")


@pytest.mark.attack("SS-19")
def test_deny_beats_allow() -> None:
    policy = FetchPolicy(allowed_domains=("*.example.com", "x.example.com"), blocked_domains=("X.example.com.",))
    assert judge(policy, "y.example.com").allowed
    denied = judge(policy, "x.example.com")
    assert not denied.allowed
    assert denied.rule == "blocked_domains: X.example.com."
    below = FetchPolicy(allowed_domains=("a.x.test", "x.test"), blocked_domains=("*.x.test",))
    assert judge(below, "x.test").allowed
    assert not judge(below, "a.x.test").allowed


@pytest.mark.attack("SS-19")
@pytest.mark.parametrize("port", [22, 25, 6379, 8080, 65535])
def test_an_allowed_host_is_allowed_on_web_ports_only(port: int) -> None:
    decision = judge(FetchPolicy(allowed_domains=("example.com",)), "example.com", port)
    assert not decision.allowed
    assert decision.rule == "allowed_domains: example.com"
    assert f"example.com:{port}" in decision.hint


def test_ports_are_widened_by_naming_them() -> None:
    assert judge(FetchPolicy(allowed_domains=("example.com:8443",)), "example.com", 8443).allowed
    assert not judge(FetchPolicy(allowed_domains=("example.com:8443",)), "example.com", 443).allowed
    assert judge(FetchPolicy(allowed_domains=("example.com",), allowed_ports=(22,)), "example.com", 22).allowed
    assert judge(FetchPolicy(allowed_domains=("[2606:4700::1]:8443",)), "[2606:4700::1]", 8443).allowed
    assert judge(FetchPolicy(allowed_domains=("2606:4700::1",)), "[2606:4700:0::1]").allowed
    assert not judge(
        FetchPolicy(allowed_domains=("example.com",), blocked_domains=("example.com:80",)), "example.com", 80
    ).allowed


@pytest.mark.attack("SS-19")
@pytest.mark.parametrize("literal", ["93.184.216.34", "[2606:2800:220:1:248:1893:25c8:1946]"])
def test_an_address_literal_needs_a_rule_of_its_own(literal: str) -> None:
    decision = judge(FetchPolicy(allowed_domains=("*", "example.com", "*.com")), literal)
    assert not decision.allowed
    assert "names do not allow addresses" in decision.reason
    assert judge(FetchPolicy(allowed_domains=(literal,)), literal).allowed


def test_methods_and_paths() -> None:
    book = compile_rules([NetworkRule("packages.test", (443,), ("GET", "head"), ("/simple/", "/packages"))])
    allowed = [("GET", "/simple/"), ("HEAD", "/simple/x"), ("GET", "/packages"), ("get", "/packages/a")]
    denied = [("POST", "/simple/"), ("GET", "/"), ("GET", "/simplex/"), ("GET", "/packagesx"), ("post", "/simple/")]
    for method, path in allowed:
        assert book.judge(ask("packages.test", 443, method, path)).allowed, (method, path)
    for method, path in denied:
        assert not book.judge(ask("packages.test", 443, method, path)).allowed, (method, path)


@pytest.mark.parametrize(
    "path",
    [
        "/simple/..;/admin",
        "/simple//../admin",
        "/simple/%2e%2e/admin",
        "/simple/%252e%252e/admin",
        "/simple/..%2fadmin",
        "/simple/..%5cadmin",
        "/simple/../admin",
        "/simple/%00",
    ],
)
def test_a_path_that_servers_read_differently_is_under_no_prefix(path: str) -> None:
    book = compile_rules([NetworkRule("packages.test", (443,), None, ("/simple/",))])
    assert not book.judge(ask("packages.test", 443, "GET", path)).allowed


def test_a_tunnel_cannot_be_held_to_methods_or_paths_so_it_is_refused() -> None:
    book = compile_rules([NetworkRule("packages.test", (443,), ("GET",))])
    tunnel = EgressRequest(parse_host("packages.test"), 443)
    assert not book.judge(tunnel).allowed
    assert book.judge(EgressRequest(parse_host("packages.test"), 443, is_readable=True)).allowed
    assert compile_rules([NetworkRule("packages.test", (443,))]).judge(tunnel).allowed


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "TRACK", "GET /x", "G\r\nET", "", "A" * 40, "G\tET"])
def test_methods_that_are_never_allowed(method: str) -> None:
    assert not judge(FetchPolicy(allowed_domains=("a.test",)), "a.test", method=method).allowed


def test_allowed_methods_hold_for_rules_too() -> None:
    policy = FetchPolicy(("a.test",), allowed_methods=("get",), rules=(NetworkRule("b.test", (443,), ("GET", "POST")),))
    assert judge(policy, "a.test").allowed and judge(policy, "b.test").allowed
    assert not judge(policy, "a.test", method="POST").allowed
    assert not judge(policy, "b.test", method="POST").allowed


def judge_address(book: RuleBook, text: str, port: int = 443, own: bool = False) -> Decision:
    return book.judge_address(ipaddress.ip_address(text), port, lambda _: own)


def test_addresses_are_refused_unless_named() -> None:
    book = compile_rules(FetchPolicy(allowed_domains=("example.com", "10.1.2.3:8080", "169.254.169.254")))
    assert judge_address(book, "8.8.8.8").allowed
    assert not judge_address(book, "8.8.8.8", own=True).allowed
    assert judge_address(book, "10.1.2.3", 8080).rule == "allowed_domains: 10.1.2.3:8080"
    assert not judge_address(book, "10.1.2.3", 443).allowed
    assert not judge_address(book, "::ffff:10.1.2.3", 8080).allowed
    assert judge_address(book, "169.254.169.254", 80).allowed


def test_a_blocked_address_is_blocked_in_every_wrapping() -> None:
    book = compile_rules(FetchPolicy(allowed_domains=("*", "8.8.8.8"), blocked_domains=("8.8.8.8",)))
    for text in ("8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::808:808"):
        assert judge_address(book, text).rule == "blocked_domains: 8.8.8.8"


def test_private_addresses_can_be_opened_but_never_metadata() -> None:
    book = compile_rules(FetchPolicy(allowed_domains=("internal.test",), deny_private_ips=False))
    for text in ("10.0.0.1", "127.0.0.1", "fd00::1", "100.64.0.1", "203.0.113.80", "2001:db8::1"):
        assert judge_address(book, text).allowed
    for text in (
        "169.254.169.254",
        "168.63.129.16",
        "fd00:ec2::254",
        "100.100.100.200",
        "224.0.0.1",
        "169.254.9.9",
        "240.0.0.1",
    ):
        assert not judge_address(book, text).allowed
    assert book.judge(ask("internal.test", 8000)).allowed
    assert not book.judge(ask("internal.test", 22)).allowed


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "http://example.com",
        "example.com/path",
        "a b",
        "*",
        "*.*.com",
        "ex*mple.com",
        "a@b.com",
        "example.com:0",
        "example.com:70000",
        "127.1",
        "0x7f000001",
        "[::1",
        "-",
        "a..b",
        "*.10.0.0.1",
        "1.2.3.4:x",
    ],
)
def test_entries_that_mean_nothing_are_refused(entry: str) -> None:
    if entry == "*":
        FetchPolicy(allowed_domains=(entry,))
        return
    with pytest.raises(PolicyViolation):
        FetchPolicy(allowed_domains=(entry,))


def test_a_bad_path_prefix_is_refused() -> None:
    for prefix in ("simple", "/a/../b", "/a//b", "/a%2fb"):
        with pytest.raises(PolicyViolation):
            compile_rules([NetworkRule("a.test", (443,), None, (prefix,))])
