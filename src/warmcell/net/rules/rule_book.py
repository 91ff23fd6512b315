"""The rule book: may this request go out, and which rule says so. Pure: no clock, no network, no state.

`FetchPolicy` and `NetworkRule` both compile into it, and every way out asks it. Deny beats allow; what no rule
allows is denied; a host written as an IP address is allowed only by a rule that names that address.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from warmcell.core.errors import PolicyViolation
from warmcell.net.credentials import SecretRef
from warmcell.net.rules.addresses import Category, classify, embedded
from warmcell.net.rules.fetch_policy import WEB_PORTS, FetchPolicy
from warmcell.net.rules.host_patterns import HostPattern, Reach, parse_entry, parse_injection, parse_pattern
from warmcell.net.rules.hosts import Host, IPAddress
from warmcell.net.rules.plain_paths import is_plain
from warmcell.policy.model import NetworkRule

NEVER_METHODS = frozenset({"CONNECT", "TRACE", "TRACK"})
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,32}")
TLS_PORT = 443
# What deny_private_ips=False opens. Link-local is not among them: that is where cloud metadata answers. Who reaches
# something by an address for examples has put it there, in a network of their own.
_OPENED_AS_PRIVATE = frozenset({Category.LOOPBACK, Category.PRIVATE, Category.OWN, Category.EXAMPLE})


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
    """One line of the book. `name` is how decisions cite it."""

    name: str
    pattern: HostPattern
    ports: Ports = ANY_PORT
    methods: frozenset[str] | None = None
    path_prefixes: tuple[str, ...] | None = None

    @property
    def looks_inside(self) -> bool:
        """Whether it can only be applied where the request itself can be read."""
        return self.methods is not None or self.path_prefixes is not None


@dataclass(frozen=True, slots=True)
class Ask:
    """What wants to go out. `method` and `path` are None for a tunnel, whose content cannot be read.

    `is_readable` marks a tunnel whose requests will be read and judged one by one when they come. `in_clear` is plain
    HTTP. A method is judged in capitals, however it is written.
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
    """Allowed or not, by which rule, and what the policy's author (never the guest) could do about it."""

    allowed: bool
    rule: str
    reason: str = ""
    hint: str = ""
    looks_inside: bool = False


@dataclass(frozen=True, slots=True)
class Injection:
    """Headers that are added on the way to some hosts, over TLS or also in the clear."""

    pattern: HostPattern
    headers: dict[str, SecretRef]
    in_clear: bool = False


@dataclass(frozen=True, slots=True)
class RuleBook:
    """Compiled rules. Immutable: changing the rules means handing out another book."""

    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    opens_private: bool = False
    inject: tuple[Injection, ...] = field(default=(), repr=False)

    def judge(self, ask: Ask) -> Decision:
        """The decision about a request or tunnel, before its name is resolved."""
        for rule in self.deny:
            if rule.pattern.matches(ask.host) and ask.port in rule.ports:
                return Decision(False, rule.name, f"{ask.host} is blocked", "remove it from blocked_domains")
        rules = [rule for rule in self.allow if rule.pattern.matches(ask.host)]
        if not rules:
            return _unnamed(ask)
        with_port = [rule for rule in rules if ask.port in rule.ports]
        if not with_port:
            return Decision(
                False,
                rules[0].name,
                f"port {ask.port} of {ask.host} is not allowed",
                f"allow {ask.host.in_url}:{ask.port}",
            )
        return self._judge_clear_text(ask) or _judge_content(ask, with_port)

    def _judge_clear_text(self, ask: Ask) -> Decision | None:
        """Why this may not go unencrypted, if so: whoever is on the way would read the credential."""
        if not ask.in_clear:
            return None
        if ask.port == TLS_PORT:
            return Decision(False, "default: port 443 carries TLS only", f"plain HTTP to {ask.host}:443", "use https")
        if any(item.pattern.matches(ask.host) and not item.in_clear for item in self.inject):
            return Decision(
                False,
                f"inject: {ask.host}",
                f"credentials for {ask.host} go over TLS only",
                f"ask for https, or write inject={{'http://{ask.host.in_url}': ...}}",
            )
        return None

    def judge_address(self, address: IPAddress, port: int, is_own: Callable[[IPAddress], bool]) -> Decision:
        """The decision about an address that a name resolved to (or that was written as such)."""
        for rule in self.deny:
            if rule.pattern.address in embedded(address) and port in rule.ports:
                return Decision(False, rule.name, f"{address} is blocked", "remove it from blocked_domains")
        for rule in self.allow:
            if rule.pattern.address == address and port in rule.ports:
                return Decision(True, rule.name)
        category = classify(address)
        if category is Category.PUBLIC and any(is_own(form) for form in embedded(address)):
            category = Category.OWN
        if category is Category.PUBLIC:
            return Decision(True, "public address")
        if self.opens_private and category in _OPENED_AS_PRIVATE:
            return Decision(True, "deny_private_ips=False")
        return Decision(
            False,
            "public addresses only",
            f"{address} is {category.value}",
            f"name the address itself in the policy: {Host(str(address), address).in_url}:{port}",
        )

    def judge_at(self, ask: Ask, address: IPAddress) -> Decision | None:
        """What the rules that name the address say about a request that a name led there, if there are any.

        A rule for an address holds however one gets there; otherwise a name for it would be a way around.
        """
        forms = embedded(address)
        rules = [rule for rule in self.allow if rule.pattern.address in forms and ask.port in rule.ports]
        return _judge_content(ask, rules) if rules else None

    def names(self, host: Host) -> bool:
        """Whether the policy's author wrote this very host, and not only a wildcard that covers it."""
        return any(rule.pattern.reach is Reach.EXACT and rule.pattern.matches(host) for rule in self.allow)

    def headers_for(self, host: Host, *, in_clear: bool) -> dict[str, SecretRef]:
        """The headers to add on the way to this host."""
        found: dict[str, SecretRef] = {}
        for item in self.inject:
            if item.pattern.matches(host) and (item.in_clear or not in_clear):
                found.update(item.headers)
        return found


def _unnamed(ask: Ask) -> Decision:
    if ask.host.address is not None:
        reason = f"the address {ask.host} is not named by the policy (names do not allow addresses)"
    else:
        reason = f"{ask.host} is not an allowed domain"
    return Decision(False, "default: what is not allowed is denied", reason, f"allow {ask.host.in_url}")


def _judge_content(ask: Ask, rules: list[Rule]) -> Decision:
    if ask.method is None:
        return _judge_tunnel(ask, rules)
    if ask.method in NEVER_METHODS or not _TOKEN.fullmatch(ask.method):
        return Decision(False, "default: CONNECT, TRACE and TRACK", f"the method {ask.method[:32]!r} is never allowed")
    with_method = [rule for rule in rules if rule.methods is None or ask.method in rule.methods]
    if not with_method:
        return Decision(False, rules[0].name, f"{ask.method} to {ask.host} is not allowed", "allow the method")
    for rule in with_method:
        if rule.path_prefixes is None or _under(ask.path or "/", rule.path_prefixes):
            return Decision(True, rule.name, looks_inside=rule.looks_inside)
    return Decision(
        False, with_method[0].name, f"{ask.method} {ask.path} on {ask.host} is not allowed", "allow the path prefix"
    )


def _judge_tunnel(ask: Ask, rules: list[Rule]) -> Decision:
    for rule in rules:
        if ask.is_readable or not rule.looks_inside:
            return Decision(True, rule.name)
    return Decision(
        False,
        rules[0].name,
        f"the rule for {ask.host} limits methods or paths, which cannot be seen inside a tunnel",
        "use plain HTTP, or let the sandbox's own CA terminate TLS for this host",
    )


def _under(path: str, prefixes: tuple[str, ...]) -> bool:
    """Whole segments: `/simple` covers `/simple` and `/simple/x`, not `/simplex`."""
    return is_plain(path) and any(path == prefix or path.startswith(prefix.rstrip("/") + "/") for prefix in prefixes)


def compile_rules(policy: FetchPolicy | Iterable[NetworkRule] | None) -> RuleBook:
    """The book for a policy, or for bare network rules. None and empty lists make a book that denies everything."""
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


def _from_network_rule(rule: NetworkRule, allowed_methods: tuple[str, ...] | None = None) -> Rule:
    methods = None if rule.methods is None else frozenset(method.upper() for method in rule.methods)
    if allowed_methods is not None:
        methods = frozenset(allowed_methods) if methods is None else methods & frozenset(allowed_methods)
    for prefix in rule.path_prefixes or ():
        if not is_plain(prefix):
            raise PolicyViolation(f"{prefix!r} is not a plain path prefix", hint="write it as '/simple/'")
    return Rule(
        f"rule: {rule.domain}", parse_pattern(rule.domain), Ports(frozenset(rule.ports)), methods, rule.path_prefixes
    )
