"""Egress: the proxies through which guests reach the network, one per run, under rules that can change meanwhile."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping

from warmcell.core.records import dataclass, field
from warmcell.core.types import Connection, Denial
from warmcell.lifetime.ownership import own
from warmcell.policy.compile import PROXY_PORT
from warmcell.policy.model import NetworkRule
from warmcell.policy.places import CODE_DIR
from warmcell.runner.cell import Cell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import ExitStack
    from typing import Any

    from warmcell.core.light import Cleanup
    from warmcell.net.connect.connection_log import ConnectionLog
    from warmcell.net.connect.limits import RateLimiter
    from warmcell.net.proxy.certificate_authority import SandboxAuthority
    from warmcell.net.proxy.egress_proxy import EgressProxy
    from warmcell.net.rules.fetch_policy import FetchPolicy, RateLimit
    from warmcell.net.rules.rule_book import Narrowing, RuleBook

_BUNDLE, _CERTIFICATE = "ca-bundle.pem", "ca.pem"


@dataclass(frozen=True, slots=True)
class EgressHandle:
    """What the guest needs to use the proxy: variables, and the sandbox's root certificate if there is one.

    `connections` lists what went through the proxy so far.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    connections: Callable[[], list[Connection]] = list


_NO_EGRESS = EgressHandle()


class Egress:
    """Belongs to a backend. Imports the networking code only when a run has network access."""

    def __init__(
        self, rules: FetchPolicy | tuple[NetworkRule, ...], audit: Callable[[str], None] | None = None
    ) -> None:
        self._rules = rules
        #: Whether guests have a proxy at all, whatever the rules are later.
        self.has_rules = not isinstance(rules, tuple) or bool(rules)
        self._audit = audit
        self._limiter: RateLimiter | None = None
        self._authority: SandboxAuthority | None = None
        self._log: ConnectionLog | None = None
        self._narrowing: Narrowing | None = None
        self.abandon()
        own(self)

    def abandon(self) -> None:
        """In a forked copy: the proxies' threads are the original's."""
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[EgressProxy] = weakref.WeakSet()

    @property
    def destinations(self) -> tuple[str, ...]:
        """The destinations that the rules name, as a caller would write them."""
        rules = self._rules if isinstance(self._rules, tuple) else self._rules.rules
        names = () if isinstance(self._rules, tuple) else self._rules.allowed_domains
        return (*names, *(rule.as_text() for rule in rules))

    def set_rules(self, rules: FetchPolicy | tuple[NetworkRule, ...]) -> None:
        """Changes the rules from the next connection on, also for runs in progress.

        Encrypted hosts that newly get credentials get them from the next run on: the guest receives the certificate for
        that when it starts.
        """
        with self._lock:
            if _hosts_with_credentials(rules) != _hosts_with_credentials(self._rules):
                self._authority = None
            if _rate(rules) != _rate(self._rules):
                self._limiter = None
            self._rules = rules
            self._apply()

    def narrow(self, narrowing: Narrowing | None) -> None:
        """From now on this narrowing must also allow each request. The log has the open connections to cut."""
        with self._lock:
            self._narrowing = narrowing
            self._apply()

    def use_log(self, log: ConnectionLog) -> None:
        """Connections of runs that start from now on are in this log."""
        self._log = log

    def rule_book(self) -> RuleBook:
        """The rules before they are narrowed."""
        from warmcell.net.rules.rule_book import compile_rules

        return compile_rules(self._rules)

    def _current_book(self) -> RuleBook:
        from dataclasses import replace

        return replace(self.rule_book(), narrowing=self._narrowing)

    def _apply(self) -> None:
        for proxy in self._open:
            proxy.set_rules(self._current_book(), self._shared_limiter())

    def open(self, cell: Cell, on_denial: Callable[[Denial], Any], cleanup: ExitStack | Cleanup) -> EgressHandle:
        """Starts the proxy on the listener that the cell opened in its own network; `cleanup` closes it."""
        listener = cell.take_listener()
        if listener is None:
            return _NO_EGRESS
        from warmcell.net.connect.connection_log import ConnectionLog
        from warmcell.net.proxy.egress_proxy import EgressProxy, authority_environment, proxy_environment

        log = ConnectionLog(self._log)
        with self._lock:
            authority = self._certificate_authority()
            limiter = self._shared_limiter()
            proxy = EgressProxy(
                listener,
                self._current_book(),
                on_denial=on_denial,
                audit=self._audit,
                authority=authority,
                limiter=limiter,
                log=log,
            )
            self._open.add(proxy)
        cleanup.callback(proxy.close)
        proxy.start()
        env = proxy_environment(PROXY_PORT)
        if authority is None:
            return EgressHandle(env, connections=log.connections)
        env |= authority_environment(f"{CODE_DIR}/{_BUNDLE}", f"{CODE_DIR}/{_CERTIFICATE}")
        files = {_BUNDLE: authority.bundle_pem(), _CERTIFICATE: authority.certificate_pem}
        return EgressHandle(env, files, log.connections)

    def _shared_limiter(self) -> RateLimiter:
        """One budget for all runs: a model that starts many runs must not multiply its allowance."""
        if self._limiter is None:
            from warmcell.net.connect.limits import RateLimiter

            self._limiter = RateLimiter(_rate(self._rules))
        return self._limiter

    def _certificate_authority(self) -> SandboxAuthority | None:
        """Only if credentials are injected into encrypted requests, and only for those hosts.

        Backends live longer than a certificate: runs that start from half of its lifetime on share a new one.
        """
        inject = _hosts_with_credentials(self._rules)
        if inject and (self._authority is None or not self._authority.is_fresh):
            from warmcell.net.proxy.certificate_authority import SandboxAuthority

            self._authority = SandboxAuthority.for_policy(self._rules)  # type: ignore[arg-type]
        return self._authority if inject else None


def _hosts_with_credentials(rules: FetchPolicy | tuple[NetworkRule, ...]) -> set[str]:
    """The hosts to which credentials are added."""
    return set(getattr(rules, "inject", None) or ())


def _rate(rules: FetchPolicy | tuple[NetworkRule, ...]) -> RateLimit | None:
    return getattr(rules, "rate_limit", None)
