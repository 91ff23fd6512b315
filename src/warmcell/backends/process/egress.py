"""Egress: the proxy behind a cell's only way out, one per run, all under rules that can change while runs go on."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping

from warmcell.core.records import dataclass, field
from warmcell.core.types import Denial
from warmcell.lifetime.ownership import own
from warmcell.policy.compile import PROXY_PORT
from warmcell.policy.model import NetworkRule
from warmcell.policy.places import CODE_DIR
from warmcell.runner.cell import Cell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import ExitStack
    from typing import Any

    from warmcell.lifetime.cleanup import Cleanup
    from warmcell.net.connect.rate_limiter import RateLimiter
    from warmcell.net.proxy.certificate_authority import SandboxAuthority
    from warmcell.net.proxy.egress_proxy import EgressProxy
    from warmcell.net.rules.fetch_policy import FetchPolicy, RateLimit

_BUNDLE, _CERTIFICATE = "ca-bundle.pem", "ca.pem"


@dataclass(frozen=True, slots=True)
class WayOut:
    """What the guest must be given to use it: variables, and the sandbox's own root certificate where there is one."""

    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


_NO_WAY_OUT = WayOut()


class Egress:
    """Belongs to a backend. Imports the networking code only when a run really has a way out."""

    def __init__(
        self, rules: FetchPolicy | tuple[NetworkRule, ...], audit: Callable[[str], None] | None = None
    ) -> None:
        self._rules = rules
        self._audit = audit
        self._limiter: RateLimiter | None = None
        self._authority: SandboxAuthority | None = None
        self.abandon()
        own(self)

    def abandon(self) -> None:
        """In a forked copy: the proxies' threads are the original's."""
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[EgressProxy] = weakref.WeakSet()

    @property
    def destinations(self) -> tuple[str, ...]:
        """What the rules name, as a caller would write it."""
        rules = self._rules if isinstance(self._rules, tuple) else self._rules.rules
        names = () if isinstance(self._rules, tuple) else self._rules.allowed_domains
        return (*names, *(rule.written() for rule in rules))

    def set_rules(self, rules: FetchPolicy | tuple[NetworkRule, ...]) -> None:
        """From the next connection on, in runs that are under way as well.

        Encrypted hosts that are newly given credentials get them from the next run on: the certificate that makes it
        possible is handed to a guest when it starts.
        """
        with self._lock:
            if _injected(rules) != _injected(self._rules):
                self._authority = None
            if _rate(rules) != _rate(self._rules):
                self._limiter = None
            self._rules = rules
            for proxy in self._open:
                proxy.set_rules(rules)

    def open(self, cell: Cell, on_denial: Callable[[Denial], Any], cleanup: ExitStack | Cleanup) -> WayOut:
        """Starts the proxy on the listener that the cell opened in its own network; it ends with `cleanup`."""
        listener = cell.give_listener()
        if listener is None:
            return _NO_WAY_OUT
        from warmcell.net.proxy.egress_proxy import EgressProxy
        from warmcell.net.proxy.guest_environment import authority_environment, proxy_environment

        with self._lock:
            authority = self._certificate_authority()
            limiter = self._shared_limiter()
            proxy = EgressProxy(
                listener, self._rules, on_denial=on_denial, audit=self._audit, authority=authority, limiter=limiter
            )
            self._open.add(proxy)
        cleanup.callback(proxy.close)
        proxy.start()
        env = proxy_environment(PROXY_PORT)
        if authority is None:
            return WayOut(env)
        env |= authority_environment(f"{CODE_DIR}/{_BUNDLE}", f"{CODE_DIR}/{_CERTIFICATE}")
        return WayOut(env, {_BUNDLE: authority.bundle_pem(), _CERTIFICATE: authority.certificate_pem})

    def _shared_limiter(self) -> RateLimiter:
        """One budget for all runs: a model that makes many of them must not multiply its allowance."""
        if self._limiter is None:
            from warmcell.net.connect.rate_limiter import RateLimiter

            self._limiter = RateLimiter(_rate(self._rules))
        return self._limiter

    def _certificate_authority(self) -> SandboxAuthority | None:
        """Only where credentials are to be put into encrypted requests, and only for those hosts."""
        inject = _injected(self._rules)
        if inject and self._authority is None:
            from warmcell.net.proxy.certificate_authority import SandboxAuthority

            self._authority = SandboxAuthority.for_policy(self._rules)  # type: ignore[arg-type]
        return self._authority if inject else None


def _injected(rules: FetchPolicy | tuple[NetworkRule, ...]) -> set[str]:
    """The hosts to which credentials are added."""
    return set(getattr(rules, "inject", None) or ())


def _rate(rules: FetchPolicy | tuple[NetworkRule, ...]) -> RateLimit | None:
    return getattr(rules, "rate_limit", None)
