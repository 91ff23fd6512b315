"""The rule book: decides whether a request may be sent, and by which rule. Pure: no clock, no network, no state.

`FetchPolicy` and `NetworkRule` both compile into it, and all traffic is judged by it. Deny rules take precedence.
Requests that no rule allows are denied. A host written as an IP address needs a rule that names that address.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from warmcell.core.errors import PolicyViolation
from warmcell.net.credentials import SecretRef
from warmcell.net.rules.fetch_policy import WEB_PORTS, FetchPolicy
from warmcell.net.rules.hosts import (
    Category,
    Host,
    HostPattern,
    IPAddress,
    Reach,
    classify,
    parse_entry,
    parse_injection,
    parse_pattern,
    unwrap_addresses,
)
from warmcell.net.rules.urls import is_plain
from warmcell.policy.model import NetworkRule

NEVER_METHODS = frozenset({"CONNECT", "TRACE", "TRACK"})
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,32}")
TLS_PORT = 443
_UPDATE_HINT = "allow it with update_network"
# What deny_private_ips=False opens. Link-local stays closed because cloud metadata services live there.
# Documentation ranges are open: a host that answers there is on the operator's own network.
_PRIVATE_CATEGORIES = frozenset({Category.LOOPBACK, Category.PRIVATE, Category.OWN, Category.EXAMPLE})


@dataclass(frozen=True, slots=True)
class Ports:
    """A set of ports: those listed, and all from `at_least` up."""

    listed: frozenset[int] = frozenset()
    at_least: int | None = None

    def __contains__(self, port: int) -> bool:
        return port in self.listed or (self.at_least is not None and port >= self.at_least)


ANY_PORT = Ports(at_least=1)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. Decisions cite it by `name`."""

    name: str
    pattern: HostPattern
    ports: Ports = ANY_PORT
    methods: frozenset[str] | None = None
    path_prefixes: tuple[str, ...] | None = None

    @property
    def reads_content(self) -> bool:
        """Whether the rule depends on the method or path, which an opaque tunnel hides."""
        return self.methods is not None or self.path_prefixes is not None


@dataclass(frozen=True, slots=True)
class EgressRequest:
    """One outgoing request or tunnel. `method` and `path` are None for a tunnel.

    `is_readable`: a tunnel whose requests the proxy will read and judge one by one; others are opaque. `in_clear`:
    plain HTTP. The method is compared in upper case.
    """

    host: Host
    port: int
    method: str | None = None
    path: str | None = None
    is_readable: bool = False
    in_clear: bool = False

    def __post_init__(self) -> None:
        if self.method is not None:
            object.__setattr__(self, "method", self.method.upper())


@dataclass(frozen=True, slots=True)
class Decision:
    """Allowed or not, and by which rule. `hint` is for the policy's author, never for the guest."""

    allowed: bool
    rule: str
    reason: str = ""
    hint: str = ""
    reads_content: bool = False


@dataclass(frozen=True, slots=True)
class Injection:
    """Headers to add to requests for matching hosts. `in_clear` permits plain HTTP as well as TLS."""

    pattern: HostPattern
    headers: dict[str, SecretRef]
    in_clear: bool = False


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Restricts what a rule book allows, and never adds to it. With `allow=None` every host may be reached."""

    allow: tuple[Rule, ...] | None = None
    deny: tuple[Rule, ...] = ()
    deny_private_ips: bool = False

    def judge(self, request: EgressRequest) -> Decision:
        """Decide about a request that the book allows."""
        for rule in self.deny:
            if rule.pattern.matches(request.host) and request.port in rule.ports:
                return Decision(False, rule.name, f"{request.host} is blocked", _UPDATE_HINT)
        if self.allow is None:
            return Decision(True, "update_network")
        rules = [rule for rule in self.allow if rule.pattern.matches(request.host) and request.port in rule.ports]
        if rules:
            return _judge_content(request, rules)
        where = f"{request.host.in_url}:{request.port}"
        return Decision(False, "update_network", f"{where} is not allowed at the moment", _UPDATE_HINT)

    def judge_address(self, address: IPAddress, port: int, is_own: Callable[[IPAddress], bool]) -> Decision | None:
        """The denial of an address that a name resolved to, or None."""
        for rule in self.deny:
            if rule.pattern.address in unwrap_addresses(address) and port in rule.ports:
                return Decision(False, rule.name, f"{address} is blocked", _UPDATE_HINT)
        if not self.deny_private_ips:
            return None
        decision = _judge_address(self.allow or (), False, address, port, is_own)
        return None if decision.allowed else decision


@dataclass(frozen=True, slots=True)
class RuleBook:
    """Compiled rules. Immutable; to change the rules, replace the book."""

    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    opens_private: bool = False
    inject: tuple[Injection, ...] = field(default=(), repr=False)
    narrowing: Narrowing | None = None

    def judge(self, request: EgressRequest) -> Decision:
        """Decide about a request or tunnel before its name is resolved."""
        decision = self._judge(request)
        if not decision.allowed or self.narrowing is None:
            return decision
        narrowed = self.narrowing.judge(request)
        if not narrowed.allowed:
            return narrowed
        return replace(decision, reads_content=decision.reads_content or narrowed.reads_content)

    def _judge(self, request: EgressRequest) -> Decision:
        for rule in self.deny:
            if rule.pattern.matches(request.host) and request.port in rule.ports:
                return Decision(False, rule.name, f"{request.host} is blocked", "remove it from blocked_domains")
        rules = [rule for rule in self.allow if rule.pattern.matches(request.host)]
        if not rules:
            return _deny_by_default(request)
        with_port = [rule for rule in rules if request.port in rule.ports]
        if not with_port:
            reason = f"port {request.port} of {request.host} is not allowed"
            return Decision(False, rules[0].name, reason, f"allow {request.host.in_url}:{request.port}")
        return self._judge_plaintext(request) or _judge_content(request, with_port)

    def _judge_plaintext(self, request: EgressRequest) -> Decision | None:
        """Deny plaintext on the TLS port and wherever a credential would be readable on the wire; else None."""
        if not request.in_clear:
            return None
        if request.port == TLS_PORT:
            rule = "default: port 443 carries TLS only"
            return Decision(False, rule, f"plain HTTP to {request.host}:443", "use https")
        if any(item.pattern.matches(request.host) and not item.in_clear for item in self.inject):
            hint = f"request for https, or write inject={{'http://{request.host.in_url}': ...}}"
            reason = f"credentials for {request.host} go over TLS only"
            return Decision(False, f"inject: {request.host}", reason, hint)
        return None

    def judge_address(self, address: IPAddress, port: int, is_own: Callable[[IPAddress], bool]) -> Decision:
        """Decide about an address literal or an address that a name resolved to."""
        denial = None if self.narrowing is None else self.narrowing.judge_address(address, port, is_own)
        if denial is not None:
            return denial
        for rule in self.deny:
            if rule.pattern.address in unwrap_addresses(address) and port in rule.ports:
                return Decision(False, rule.name, f"{address} is blocked", "remove it from blocked_domains")
        return _judge_address(self.allow, self.opens_private, address, port, is_own)

    def judge_by_address_rules(self, request: EgressRequest, address: IPAddress) -> Decision | None:
        """Apply the rules that name this address to a request that reached it by name; None if there are none.

        Without this, any name that resolves to the address would bypass those rules.
        """
        forms = unwrap_addresses(address)
        rules = [rule for rule in self.allow if rule.pattern.address in forms and request.port in rule.ports]
        return _judge_content(request, rules) if rules else None

    def names_host(self, host: Host) -> bool:
        """Whether a rule names exactly this host, not only a wildcard that covers it."""
        return any(rule.pattern.reach is Reach.EXACT and rule.pattern.matches(host) for rule in self.allow)

    def headers_for(self, host: Host, *, in_clear: bool) -> dict[str, SecretRef]:
        """The headers to add to requests for this host."""
        found: dict[str, SecretRef] = {}
        for item in self.inject:
            if item.pattern.matches(host) and (item.in_clear or not in_clear):
                found.update(item.headers)
        return found


def _judge_address(
    allow: tuple[Rule, ...], opens_private: bool, address: IPAddress, port: int, is_own: Callable[[IPAddress], bool]
) -> Decision:
    for rule in allow:
        if rule.pattern.address == address and port in rule.ports:
            return Decision(True, rule.name)
    category = classify(address)
    if category is Category.PUBLIC and any(is_own(form) for form in unwrap_addresses(address)):
        category = Category.OWN
    if category is Category.PUBLIC:
        return Decision(True, "public address")
    if opens_private and category in _PRIVATE_CATEGORIES:
        return Decision(True, "deny_private_ips=False")
    hint = f"name the address itself in the policy: {Host(str(address), address).in_url}:{port}"
    return Decision(False, "public addresses only", f"{address} is {category.value}", hint)


def _deny_by_default(request: EgressRequest) -> Decision:
    if request.host.address is not None:
        reason = f"the address {request.host} is not named by the policy (names do not allow addresses)"
    else:
        reason = f"{request.host} is not an allowed domain"
    return Decision(False, "default: what is not allowed is denied", reason, f"allow {request.host.in_url}")


def _judge_content(request: EgressRequest, rules: list[Rule]) -> Decision:
    if request.method is None:
        return _judge_tunnel(request, rules)
    if request.method in NEVER_METHODS or not _TOKEN.fullmatch(request.method):
        return Decision(
            False, "default: CONNECT, TRACE and TRACK", f"the method {request.method[:32]!r} is never allowed"
        )
    with_method = [rule for rule in rules if rule.methods is None or request.method in rule.methods]
    if not with_method:
        return Decision(False, rules[0].name, f"{request.method} to {request.host} is not allowed", "allow the method")
    for rule in with_method:
        if rule.path_prefixes is None or _is_under(request.path or "/", rule.path_prefixes):
            return Decision(True, rule.name, reads_content=rule.reads_content)
    reason = f"{request.method} {request.path} on {request.host} is not allowed"
    return Decision(False, with_method[0].name, reason, "allow the path prefix")


def _judge_tunnel(request: EgressRequest, rules: list[Rule]) -> Decision:
    for rule in rules:
        if request.is_readable or not rule.reads_content:
            return Decision(True, rule.name)
    reason = f"the rule for {request.host} limits methods or paths, which cannot be seen inside a tunnel"
    hint = "use plain HTTP, or let the sandbox's own CA terminate TLS for this host"
    return Decision(False, rules[0].name, reason, hint)


def _is_under(path: str, prefixes: tuple[str, ...]) -> bool:
    """Compare whole segments: `/simple` covers `/simple` and `/simple/x`, not `/simplex`."""
    return is_plain(path) and any(path == prefix or path.startswith(prefix.rstrip("/") + "/") for prefix in prefixes)


def compile_rules(policy: FetchPolicy | Iterable[NetworkRule] | None) -> RuleBook:
    """Compile a policy or bare network rules. None and an empty list deny everything."""
    if policy is None:
        return RuleBook()
    if not isinstance(policy, FetchPolicy):
        return RuleBook(allow=tuple(_from_network_rule(rule) for rule in policy))
    return RuleBook(
        allow=tuple(
            [_from_entry(policy, entry) for entry in policy.allowed_domains]
            + [_from_network_rule(rule, policy.allowed_methods) for rule in policy.rules]
        ),
        deny=tuple(_deny_entry(entry) for entry in policy.blocked_domains),
        opens_private=not policy.deny_private_ips,
        inject=tuple(_injection(where, headers) for where, headers in policy.inject.items()),
    )


def _injection(where: str, headers: Mapping[str, SecretRef]) -> Injection:
    pattern, in_clear = parse_injection(where)
    return Injection(pattern, dict(headers), in_clear)


def _from_entry(policy: FetchPolicy, entry: str) -> Rule:
    pattern, port = parse_entry(entry)
    if port is not None:
        ports = Ports(frozenset({port}))
    elif policy.allowed_ports is not None:
        ports = Ports(frozenset(policy.allowed_ports))
    else:
        ports = Ports(frozenset(WEB_PORTS), None if policy.deny_private_ips else 1024)
    methods = None if policy.allowed_methods is None else frozenset(policy.allowed_methods)
    return Rule(f"allowed_domains: {entry}", pattern, ports, methods)


def _deny_entry(entry: str) -> Rule:
    pattern, port = parse_entry(entry)
    return Rule(f"blocked_domains: {entry}", pattern, ANY_PORT if port is None else Ports(frozenset({port})))


def check_prefixes(prefixes: Iterable[str]) -> None:
    for prefix in prefixes:
        if not is_plain(prefix):
            raise PolicyViolation(f"{prefix!r} is not a plain path prefix", hint="write it as '/simple/'")


def _from_network_rule(rule: NetworkRule, allowed_methods: tuple[str, ...] | None = None) -> Rule:
    methods = None if rule.methods is None else frozenset(method.upper() for method in rule.methods)
    if allowed_methods is not None:
        methods = frozenset(allowed_methods) if methods is None else methods & frozenset(allowed_methods)
    check_prefixes(rule.path_prefixes or ())
    return Rule(
        f"rule: {rule.domain}", parse_pattern(rule.domain), Ports(frozenset(rule.ports)), methods, rule.path_prefixes
    )
