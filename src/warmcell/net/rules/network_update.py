"""Turns the arguments of `update_network` into a narrowing of the rules that a sandbox was made with. Pure module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from warmcell.core.errors import InvalidRequest, PolicyViolation
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.hosts import Reach, parse_entry, parse_pattern
from warmcell.net.rules.rule_book import (
    ANY_PORT,
    EgressRequest,
    Narrowing,
    Ports,
    Rule,
    RuleBook,
    check_prefixes,
    compile_rules,
)
from warmcell.policy.model import NetworkRule, SandboxPolicy

#: Fields of a `FetchPolicy` that an update cannot change.
_FIXED = ("request_timeout", "max_redirects", "max_body_bytes", "rate_limit", "inject")
#: E2B's notation for all traffic.
_EVERYTHING = frozenset({"0.0.0.0/0", "::/0"})
_HINT = "a SandboxPolicy, a FetchPolicy, or a list of NetworkRule and names such as 'example.com:443'"


def read_update(update: object) -> Narrowing:
    """The narrowing of a `SandboxPolicy`, a `FetchPolicy`, or a list of rules and names; an empty list denies all."""
    if isinstance(update, Narrowing):
        return update
    if isinstance(update, SandboxPolicy):
        return Narrowing() if update.allow_network else Narrowing(compile_rules(update.network_rules).allow)
    if isinstance(update, FetchPolicy):
        default = FetchPolicy()
        fixed = next((name for name in _FIXED if getattr(update, name) != getattr(default, name)), None)
        if fixed is not None:
            hint = "it is fixed when the sandbox is made; leave it out"
            raise InvalidRequest(f"{fixed} cannot be updated", field="network", hint=hint)
        book = compile_rules(update)
        return Narrowing(book.allow, book.deny, update.deny_private_ips)
    if update is None or isinstance(update, str | bytes) or not isinstance(update, Iterable):
        raise InvalidRequest(f"must be rules, not {type(update).__name__}", field="network", hint=_HINT)
    return Narrowing(tuple(_rule(item) for item in update))


def read_lists(allow: Iterable[str] | None, deny: Iterable[str] | None) -> Narrowing:
    """The narrowing of E2B's `allowOut`, which lists exceptions to denying all traffic, and `denyOut`."""
    allowed, denied = tuple(allow or ()), tuple(deny or ())
    if _EVERYTHING & set(denied):
        return Narrowing(None if _EVERYTHING & set(allowed) else tuple(map(_rule, allowed)))
    if allowed and denied:
        hint = "put 0.0.0.0/0 into denyOut; allowOut then lists the exceptions"
        raise InvalidRequest("allowOut works only if denyOut denies all traffic", field="network", hint=hint)
    for entry in denied:
        if "/" in entry:
            hint = "names, addresses, and 0.0.0.0/0 for all traffic"
            raise InvalidRequest(f"a network such as {entry[:60]!r} cannot be denied", field="network", hint=hint)
    return Narrowing(None, tuple(map(_rule, denied)))


def check_update(narrowing: Narrowing, *books: RuleBook) -> None:
    """Raises `PolicyViolation` for a host that the rules do not allow on any port. Wildcards are not checked."""
    for rule in narrowing.allow or ():
        if rule.pattern.reach is not Reach.EXACT or rule.pattern.host is None:
            continue
        host = rule.pattern.host
        requests = [
            (book, EgressRequest(host, port, is_readable=True))
            for book in books
            for port in rule.ports.listed or _ports_of(book)
        ]
        if not any(book.judge(request).allowed for book, request in requests):
            hint = "update_network narrows that policy; make a sandbox with a wider one"
            raise PolicyViolation(f"{host} is not in the policy that the sandbox was made with", hint=hint)


def _ports_of(book: RuleBook) -> set[int]:
    """Ports at which a book may allow something."""
    listed = {port for rule in book.allow for port in rule.ports.listed}
    return listed | {rule.ports.at_least for rule in book.allow if rule.ports.at_least is not None}


def _rule(item: Any) -> Rule:
    if isinstance(item, NetworkRule):
        return compile_rules([item]).allow[0]
    if not isinstance(item, str):
        raise InvalidRequest(f"must be a rule or a name, not {type(item).__name__}", field="network", hint=_HINT)
    pattern, port = parse_entry(item)
    return Rule(f"update_network: {item}", pattern, ANY_PORT if port is None else Ports(frozenset({port})))


def to_plain(narrowing: Narrowing) -> dict[str, Any]:
    """The narrowing as JSON, for a server. Rules without ports allow nothing, and are left out: there they mean all."""
    rules = None if narrowing.allow is None else [rule for rule in narrowing.allow if rule.ports != Ports()]
    allow = None if rules is None else [_plain_rule(rule) for rule in rules]
    deny = [_plain_rule(rule) for rule in narrowing.deny]
    return {"allow": allow, "deny": deny, "deny_private_ips": narrowing.deny_private_ips}


def from_plain(
    allow: Iterable[Mapping[str, Any]] | None, deny: Iterable[Mapping[str, Any]], deny_private_ips: bool = False
) -> Narrowing:
    """The inverse of `to_plain`. Raises `PolicyViolation`."""
    allowed = None if allow is None else tuple(map(_from_plain_rule, allow))
    return Narrowing(allowed, tuple(map(_from_plain_rule, deny)), deny_private_ips)


def _plain_rule(rule: Rule) -> dict[str, Any]:
    return {
        "domain": str(rule.pattern),
        "ports": sorted(rule.ports.listed),
        "ports_from": rule.ports.at_least,
        "methods": None if rule.methods is None else sorted(rule.methods),
        "path_prefixes": None if rule.path_prefixes is None else list(rule.path_prefixes),
    }


def _from_plain_rule(plain: Mapping[str, Any]) -> Rule:
    domain, listed, at_least = plain["domain"], frozenset(plain["ports"]), plain["ports_from"]
    ports = ANY_PORT if not listed and at_least is None else Ports(listed, at_least)
    methods = None if plain["methods"] is None else frozenset(method.upper() for method in plain["methods"])
    prefixes = None if plain["path_prefixes"] is None else tuple(plain["path_prefixes"])
    check_prefixes(prefixes or ())
    return Rule(f"update_network: {domain}", parse_pattern(domain), ports, methods, prefixes)
