"""The rule book as whole objects: what policies compile to, and each decision with its rule, reason and hint."""

from __future__ import annotations

import ipaddress
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from warmcell.core.errors import PolicyViolation
from warmcell.net.credentials import SecretRef
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.hosts import Category, parse_host, parse_pattern
from warmcell.net.rules.rule_book import (
    ANY_PORT,
    Decision,
    EgressRequest,
    Injection,
    Ports,
    Rule,
    RuleBook,
    compile_rules,
)
from warmcell.policy.model import NetworkRule

WEB = Ports(frozenset({80, 443}))
KEY = {"authorization": SecretRef("KEY")}
OTHER_KEY = {"x-key": SecretRef("OTHER")}


def rule(name: str, host: str = "a.org", ports: Ports = WEB, **more: Any) -> Rule:
    return Rule(name, parse_pattern(host), ports, **more)


@pytest.mark.parametrize(
    ("policy", "book"),
    [
        (None, RuleBook((), (), False, ())),
        ([], RuleBook((), (), False, ())),
        ([NetworkRule("a.org")], RuleBook(allow=(rule("rule: a.org"),))),
        (
            [NetworkRule("a.org", (8080,), ("get", "Post"), ("/x/",))],
            RuleBook(
                allow=(
                    rule(
                        "rule: a.org",
                        ports=Ports(frozenset({8080})),
                        methods=frozenset({"GET", "POST"}),
                        path_prefixes=("/x/",),
                    ),
                )
            ),
        ),
        (FetchPolicy(allowed_domains=("a.org",)), RuleBook(allow=(rule("allowed_domains: a.org"),))),
        (
            FetchPolicy(allowed_domains=("a.org",), deny_private_ips=False),
            RuleBook(allow=(rule("allowed_domains: a.org", ports=Ports(WEB.listed, 1024)),), opens_private=True),
        ),
        (
            FetchPolicy(allowed_domains=("a.org", "a.org:99"), allowed_ports=(7,), allowed_methods=("GET",)),
            RuleBook(
                allow=(
                    rule("allowed_domains: a.org", ports=Ports(frozenset({7})), methods=frozenset({"GET"})),
                    rule("allowed_domains: a.org:99", ports=Ports(frozenset({99})), methods=frozenset({"GET"})),
                )
            ),
        ),
        (
            FetchPolicy(
                rules=(NetworkRule("a.org"), NetworkRule("a.org", methods=("PUT", "GET"))), allowed_methods=("GET",)
            ),
            RuleBook(allow=(rule("rule: a.org", methods=frozenset({"GET"})),) * 2),
        ),
        (
            FetchPolicy(blocked_domains=("a.org", "a.org:99")),
            RuleBook(
                deny=(
                    rule("blocked_domains: a.org", ports=ANY_PORT),
                    rule("blocked_domains: a.org:99", ports=Ports(frozenset({99}))),
                )
            ),
        ),
    ],
)
def test_what_a_policy_compiles_to(policy: Any, book: RuleBook) -> None:
    assert compile_rules(policy) == book


def test_ports() -> None:
    assert Ports(frozenset(), 1) == ANY_PORT
    ports = Ports(frozenset({80}), 1024)
    assert [port for port in (79, 80, 81, 1023, 1024, 1025, 65535) if port in ports] == [80, 1024, 1025, 65535]
    assert 81 not in WEB


RULES = (
    rule("first"),
    rule("written", "w.org", Ports(frozenset({443})), methods=frozenset({"GET"}), path_prefixes=("/x/", "/y")),
    rule("methods", "m.org", methods=frozenset({"GET"})),
    rule("paths", "p.org", path_prefixes=("/",)),
    rule("six", "[2001:db8::1]"),
    rule("port", "both.org", Ports(frozenset({22}))),
    rule("narrow", "twice.org", methods=frozenset({"GET"}), path_prefixes=("/x/",)),
    rule("wide", "twice.org", methods=frozenset({"GET", "PUT"}), path_prefixes=("/y/",)),
)
BOOK = RuleBook(allow=RULES, deny=(rule("blocked", "both.org", Ports(frozenset({80}))),))
DEFAULT, NEVER = "default: what is not allowed is denied", "default: CONNECT, TRACE and TRACK"
IN_A_TUNNEL = "limits methods or paths, which cannot be seen inside a tunnel"
BY_OWN_CA = "use plain HTTP, or let the sandbox's own CA terminate TLS for this host"


@pytest.mark.parametrize(
    ("asked", "decision"),
    [
        (("a.org", 443, "GET", "/"), Decision(True, "first", "", "", False)),
        (("a.org", 443, "GET", "/%2e"), Decision(True, "first")),
        (("a.org", 443), Decision(True, "first")),
        (("a.org", 443, None, None, True), Decision(True, "first")),
        (("a.org", 22), Decision(False, "first", "port 22 of a.org is not allowed", "allow a.org:22")),
        (("b.org", 443), Decision(False, DEFAULT, "b.org is not an allowed domain", "allow b.org")),
        (
            ("[::5]", 443),
            Decision(
                False,
                DEFAULT,
                "the address ::5 is not named by the policy (names do not allow addresses)",
                "allow [::5]",
            ),
        ),
        (("both.org", 80), Decision(False, "blocked", "both.org is blocked", "remove it from blocked_domains")),
        (("both.org", 22), Decision(True, "port")),
        (("a.org", 443, "TRACE"), Decision(False, NEVER, "the method 'TRACE' is never allowed")),
        (("a.org", 443, "GE T"), Decision(False, NEVER, "the method 'GE T' is never allowed")),
        (("a.org", 443, "X" * 32), Decision(True, "first")),
        (("a.org", 443, "X" * 33), Decision(False, NEVER, f"the method {'X' * 32!r} is never allowed")),
        (("w.org", 443, "GET", "/x/1"), Decision(True, "written", reads_content=True)),
        (("w.org", 443, "GET", "/y"), Decision(True, "written", reads_content=True)),
        (
            ("w.org", 443, "GET", "/x"),
            Decision(False, "written", "GET /x on w.org is not allowed", "allow the path prefix"),
        ),
        (
            ("w.org", 443, "GET", "/x/%2E"),
            Decision(False, "written", "GET /x/%2E on w.org is not allowed", "allow the path prefix"),
        ),
        (("w.org", 443, "PUT", "/x/1"), Decision(False, "written", "PUT to w.org is not allowed", "allow the method")),
        (("m.org", 443, "GET", "/z"), Decision(True, "methods", reads_content=True)),
        (("p.org", 443, "GET", None), Decision(True, "paths", reads_content=True)),
        (("w.org", 443), Decision(False, "written", f"the rule for w.org {IN_A_TUNNEL}", BY_OWN_CA)),
        (("m.org", 443), Decision(False, "methods", f"the rule for m.org {IN_A_TUNNEL}", BY_OWN_CA)),
        (("p.org", 443), Decision(False, "paths", f"the rule for p.org {IN_A_TUNNEL}", BY_OWN_CA)),
        (("w.org", 443, None, None, True), Decision(True, "written")),
        (("twice.org", 443, "GET", "/y/"), Decision(True, "wide", reads_content=True)),
        (("twice.org", 22), Decision(False, "narrow", "port 22 of twice.org is not allowed", "allow twice.org:22")),
        (("twice.org", 443), Decision(False, "narrow", f"the rule for twice.org {IN_A_TUNNEL}", BY_OWN_CA)),
        (("twice.org", 443, "POST"), Decision(False, "narrow", "POST to twice.org is not allowed", "allow the method")),
        (
            ("twice.org", 443, "GET", "/z"),
            Decision(False, "narrow", "GET /z on twice.org is not allowed", "allow the path prefix"),
        ),
    ],
)
def test_decisions(asked: tuple[Any, ...], decision: Decision) -> None:
    host, *rest = asked
    assert BOOK.judge(EgressRequest(parse_host(host), *rest)) == decision


NAMED = RuleBook(
    allow=(rule("six", "[fd00::1]"),), deny=(rule("blocked", "8.8.8.8", Ports(frozenset({443}))),), opens_private=False
)
OPENED = RuleBook(opens_private=True)
HINT = "name the address itself in the policy: "


@pytest.mark.parametrize(
    ("book", "address", "port", "is_own", "decision"),
    [
        (NAMED, "9.9.9.9", 443, False, Decision(True, "public address")),
        (
            NAMED,
            "9.9.9.9",
            443,
            True,
            Decision(False, "public addresses only", f"9.9.9.9 is {Category.OWN.value}", f"{HINT}9.9.9.9:443"),
        ),
        (
            NAMED,
            "8.8.8.8",
            443,
            False,
            Decision(False, "blocked", "8.8.8.8 is blocked", "remove it from blocked_domains"),
        ),
        (NAMED, "8.8.8.8", 80, False, Decision(True, "public address")),
        (NAMED, "fd00::1", 443, False, Decision(True, "six")),
        (
            NAMED,
            "fd00::1",
            22,
            False,
            Decision(False, "public addresses only", f"fd00::1 is {Category.PRIVATE.value}", f"{HINT}[fd00::1]:22"),
        ),
        (OPENED, "10.0.0.1", 443, False, Decision(True, "deny_private_ips=False")),
        (OPENED, "127.0.0.1", 443, False, Decision(True, "deny_private_ips=False")),
        (OPENED, "9.9.9.9", 443, True, Decision(True, "deny_private_ips=False")),
        (
            OPENED,
            "169.254.169.254",
            80,
            False,
            Decision(
                False,
                "public addresses only",
                f"169.254.169.254 is {Category.METADATA.value}",
                f"{HINT}169.254.169.254:80",
            ),
        ),
    ],
)
def test_decisions_about_addresses(book: RuleBook, address: str, port: int, is_own: bool, decision: Decision) -> None:
    assert book.judge_address(ipaddress.ip_address(address), port, lambda _: is_own) == decision


def test_an_address_that_carries_our_own_is_our_own() -> None:
    carrier, own = ipaddress.ip_address("64:ff9b::909:909"), ipaddress.ip_address("9.9.9.9")
    reason, hint = f"{carrier} is {Category.OWN.value}", f"{HINT}[{carrier}]:443"
    decision = Decision(False, "public addresses only", reason, hint)
    assert RuleBook().judge_address(carrier, 443, lambda form: form == own) == decision


def test_headers_are_added_for_hosts_that_match() -> None:
    below, one = Injection(parse_pattern("*.a.org"), KEY), Injection(parse_pattern("x.a.org"), OTHER_KEY, in_clear=True)
    book = RuleBook(inject=(below, one))
    assert book.headers_for(parse_host("x.a.org"), in_clear=False) == KEY | OTHER_KEY
    assert book.headers_for(parse_host("y.a.org"), in_clear=False) == KEY
    assert book.headers_for(parse_host("a.org"), in_clear=False) == {}
    assert book.headers_for(parse_host("x.a.org"), in_clear=True) == OTHER_KEY
    assert "inject" not in repr(book)


@pytest.mark.parametrize("prefix", ["x", "", "/a//b", "/a/../b"])
def test_a_prefix_that_is_no_plain_path(prefix: str) -> None:
    with pytest.raises(PolicyViolation, match="is not a plain path prefix"):
        compile_rules([NetworkRule("a.org", path_prefixes=(prefix,))])


@pytest.mark.parametrize("record", [WEB, RULES[0], BOOK, Decision(True, ""), EgressRequest(parse_host("a.org"), 1)])
def test_nobody_changes_a_book(record: Any) -> None:
    for name in record.__slots__:
        with pytest.raises(FrozenInstanceError):
            setattr(record, name, None)
    assert not hasattr(record, "__dict__")
