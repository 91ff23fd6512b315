"""FetchPolicy and RateLimit: the network policy as its author writes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from warmcell.core.errors import InvalidRequest, PolicyViolation
from warmcell.core.request_checks import check_whole
from warmcell.core.types import MIB, FrozenMapping, check_timeout
from warmcell.net.credentials import SecretRef
from warmcell.net.rules.hosts import parse_entry, parse_injection
from warmcell.policy.model import NetworkRule

WEB_PORTS = (80, 443)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `requests` per `per_seconds` on average, in total, and at most `per_domain` for each host."""

    requests: int
    per_seconds: float = 60.0
    per_domain: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "per_domain"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidRequest(f"must be a whole number from 1, not {value!r}", field=f"rate_limit.{name}")
        if not 0 < self.per_seconds < math.inf:
            raise InvalidRequest("must be a number of seconds above 0", field="rate_limit.per_seconds")


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """Which hosts a sandbox may reach. Without `allowed_domains` or `rules`: none.

    A domain is `example.com`, `*.example.com` (true subdomains only), `*` (every name, public addresses only) or an
    IP address, each with an optional `:port`. `deny_private_ips=False` opens private networks and this machine (not
    link-local addresses, where cloud metadata lives) and, unless `allowed_ports` says otherwise, ports from 1024 up.
    `rate_limit` is a `RateLimit` or a number of requests per minute. `inject` adds headers to outgoing requests:
    `{"api.example.com": {"Authorization": SecretRef.env("TOKEN", format="Bearer {}")}}`. They are sent over TLS only,
    and plain HTTP to such a host is refused, unless the host is written `http://api.example.com`.
    """

    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    deny_private_ips: bool = True
    allowed_methods: tuple[str, ...] | None = None
    request_timeout: float = 30.0
    max_redirects: int = 10
    max_body_bytes: int = 10 * MIB
    rate_limit: RateLimit | None = None
    allowed_ports: tuple[int, ...] | None = None
    rules: tuple[NetworkRule, ...] = ()
    inject: Mapping[str, Mapping[str, SecretRef]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("allowed_domains", "blocked_domains"):
            put(self, name, _texts(name, getattr(self, name)))
            for entry in getattr(self, name):
                parse_entry(entry)
        if not isinstance(self.deny_private_ips, bool):
            raise InvalidRequest("must be true or false", field="deny_private_ips")
        if self.allowed_methods is not None:
            methods = _texts("allowed_methods", self.allowed_methods)
            put(self, "allowed_methods", tuple(method.upper() for method in methods))
        put(self, "request_timeout", check_timeout(self.request_timeout, "request_timeout"))
        check_whole("max_redirects", self.max_redirects, 0, 50)
        check_whole("max_body_bytes", self.max_body_bytes, 0, 1 << 31)
        self._check_ports()
        self._check_rate()
        put(self, "rules", tuple(self.rules or ()))
        put(self, "inject", _check_inject(self.inject))

    def _check_ports(self) -> None:
        if self.allowed_ports is None:
            return
        object.__setattr__(self, "allowed_ports", tuple(self.allowed_ports))
        for port in self.allowed_ports:
            check_whole("allowed_ports", port, 1, 65535)

    def _check_rate(self) -> None:
        if isinstance(self.rate_limit, int) and not isinstance(self.rate_limit, bool):
            object.__setattr__(self, "rate_limit", RateLimit(self.rate_limit))
        elif self.rate_limit is not None and not isinstance(self.rate_limit, RateLimit):
            raise InvalidRequest("must be a RateLimit or a number of requests per minute", field="rate_limit")


def _texts(name: str, value: Iterable[str] | None) -> tuple[str, ...]:
    if isinstance(value, str):
        raise InvalidRequest(f"must be a list of texts, not the text {value!r}", field=name)
    items = tuple(value or ())
    if not all(isinstance(item, str) for item in items):
        raise InvalidRequest("must be a list of texts", field=name)
    return items


def _check_inject(inject: Mapping[str, Mapping[str, SecretRef]]) -> Mapping[str, Mapping[str, SecretRef]]:
    checked = {}
    for domain, headers in (inject or {}).items():
        parse_injection(domain)
        for name, secret in headers.items():
            if not isinstance(secret, SecretRef):
                # The message must not contain the value, which is probably the secret itself.
                reason = f"inject[{domain!r}][{name!r}] must be a SecretRef, not {type(secret).__name__}"
                hint = "SecretRef.env('NAME'), SecretRef.file(path) or SecretRef(callable)"
                raise PolicyViolation(reason, hint=hint)
        checked[domain] = FrozenMapping(dict(headers))
    return FrozenMapping(checked)
