"""The gate: checks every outgoing connection and audits each decision as one line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from warmcell.core import events
from warmcell.core.errors import FetchFailed
from warmcell.core.types import Denial
from warmcell.net.connect.connection_log import ConnectionLog
from warmcell.net.connect.dial import Resolver, resolve_host, system_resolver
from warmcell.net.connect.limits import RateLimiter
from warmcell.net.credentials import SecretUnavailable
from warmcell.net.rules.headers import steering_header
from warmcell.net.rules.hosts import Host, IPAddress, is_own
from warmcell.net.rules.rule_book import Decision, EgressRequest, RuleBook

RULE = "public addresses only"
_HINT = "the name does not exist or resolves to an address that the policy does not allow; see the audit log"


class Unreachable(FetchFailed):
    """A name that a guest may look up but not reach. Its message is for the host only; see `as_guest_error`.

    A guest that learns what a name resolves to, or whether it exists, can map the host's network. So a name that does
    not exist and one that resolves to a forbidden address look the same to the guest, unless the policy names that
    exact host. The host's code and the audit log see the difference.
    """

    def __init__(self, message: str, *, where: str, reason: str, hint: str | None = None) -> None:
        super().__init__(message, reason=reason, hint=hint)
        self.where = where


def unreachable_denial(request: EgressRequest) -> Denial:
    """A denial without details: models, and through them guests, can read denials."""
    return Denial("network", f"{request.host.in_url}:{request.port}", RULE, _HINT)


def as_guest_error(error: FetchFailed) -> FetchFailed:
    """The error as the guest may see it."""
    if isinstance(error, Unreachable):
        return FetchFailed(f"refused: {error.where} is not reachable from this sandbox", reason="refused")
    if isinstance(error, SecretUnavailable):
        return FetchFailed("a credential for this host cannot be read", reason=error.reason)
    return error


AuditSink = Callable[[str], None]
"""Called with one line of JSON (without newline) per decision. If it raises, the connection is not made."""

DenialSink = Callable[[Denial], None]
HeaderPairs = Iterable[tuple[str, str]]

#: The most characters of a path in an audit line.
_LONGEST_PATH = 1000


class Gate:
    """A rule book and what is needed to apply it: resolver, rate limiter, audit and denial sinks.

    `rules` may be replaced at any time from any thread; it takes effect with the next decision.
    """

    def __init__(
        self,
        rules: RuleBook,
        *,
        limiter: RateLimiter | None = None,
        resolver: Resolver | None = None,
        audit: AuditSink | None = None,
        on_denial: DenialSink | None = None,
        is_own_address: Callable[[IPAddress], bool] = is_own,
        log: ConnectionLog | None = None,
    ) -> None:
        self.rules = rules
        self.log = log or ConnectionLog()
        self.limiter = limiter or RateLimiter(None)
        self._resolver = resolver or system_resolver
        self._audit, self._on_denial = audit, on_denial
        self._is_own = is_own_address

    async def admit(self, request: EgressRequest, via: str) -> tuple[tuple[IPAddress, ...], Decision]:
        """Return the addresses that may be dialled and the decision. Raises `FetchFailed` if denied."""
        # `self.rules` may be replaced while the name is being resolved; the whole decision uses one book.
        rules = self.rules
        decision = self.judge(request, via, rules)
        addresses = await self._resolve(request, via, rules)
        # Except for a newer narrowing: `ConnectionLog.cut` could not judge addresses that were not known yet.
        rules = replace(rules, narrowing=self.rules.narrowing)
        for address in addresses:
            verdict = rules.judge_address(address, request.port, self._is_own)
            if verdict.allowed:
                verdict = rules.judge_by_address_rules(request, address) or verdict
            if not verdict.allowed:
                raise self._refuse_address(request, verdict, via, address)
            decision = replace(decision, reads_content=decision.reads_content or verdict.reads_content)
        self._record(request, decision, via, addresses=[str(address) for address in addresses])
        return addresses, decision

    async def _resolve(self, request: EgressRequest, via: str, rules: RuleBook) -> tuple[IPAddress, ...]:
        try:
            return await resolve_host(request.host, request.port, self._resolver)
        except FetchFailed as error:
            # The guest may know that a host named in the policy exists, but not one that only a wildcard covers.
            if rules.names_host(request.host):
                raise
            self._record(request, Decision(False, RULE, error.message), via)
            if self._on_denial is not None:
                self._on_denial(unreachable_denial(request))
            raise Unreachable(error.message, where=request.host.name, reason=error.reason) from None

    def _refuse_address(self, request: EgressRequest, verdict: Decision, via: str, address: IPAddress) -> FetchFailed:
        """Gives the full reason only for an address literal: the guest must not learn what a name resolves to."""
        if request.host.address is not None:
            return self.refuse(request, verdict, via)
        self._record(request, verdict, via, addresses=[str(address)])
        if self._on_denial is not None:
            self._on_denial(unreachable_denial(request))
        message = f"{verdict.reason} (rule: {verdict.rule})"
        return Unreachable(message, where=request.host.name, reason="refused", hint=verdict.hint or None)

    def judge(self, request: EgressRequest, via: str, rules: RuleBook | None = None) -> Decision:
        """Apply the rule book and the rate limit, before any name lookup. Raises `FetchFailed` if denied."""
        decision = (rules or self.rules).judge(request)
        if not decision.allowed:
            raise self.refuse(request, decision, via)
        # Requests inside a readable tunnel are counted when they arrive.
        if not request.is_readable and not self.limiter.admit(request.host.name):
            limited = Decision(False, "rate_limit", f"too many requests to {request.host}", "wait, or raise rate_limit")
            raise self.refuse(request, limited, via, reason="rate_limited")
        return decision

    def refuse(self, request: EgressRequest, decision: Decision, via: str, *, reason: str = "refused") -> FetchFailed:
        """Record and report the refusal; return the error to raise."""
        self._record(request, decision, via)
        if self._on_denial is not None:
            what = f"{request.host.in_url}:{request.port}"
            self._on_denial(Denial("network", what, decision.rule, decision.hint or decision.reason))
        return FetchFailed(f"{decision.reason} (rule: {decision.rule})", reason=reason, hint=decision.hint or None)

    def refuse_steering(self, request: EgressRequest, decision: Decision, headers: HeaderPairs, via: str) -> None:
        """Raises `FetchFailed` for a header that could bypass a rule about methods or paths."""
        name = steering_header(headers) if decision.reads_content else None
        if name is not None:
            verdict = Decision(False, decision.rule, f"the header {name!r} could bypass the rule")
            raise self.refuse(request, verdict, via)

    def refuse_malformed(self, reason: str, via: str) -> None:
        """Record a request that was refused before its destination could be parsed."""
        nowhere, rule = EgressRequest(Host(""), 0), "default: ambiguous requests are refused"
        self._record(nowhere, Decision(False, rule, reason), via)
        if self._on_denial is not None:
            self._on_denial(Denial("network", "an ambiguous request", rule, reason))

    def _record(self, request: EgressRequest, decision: Decision, via: str, **more: Any) -> None:
        if not decision.allowed:
            self.log.add(request, decision)
        if self._audit is None and not events.listeners:
            return
        line: dict[str, Any] = {
            "via": via,
            "decision": "allow" if decision.allowed else "deny",
            "rule": decision.rule,
            "host": request.host.name,
            "port": request.port,
        }
        # Without the query, which may hold tokens.
        path = None if request.path is None else request.path[:_LONGEST_PATH]
        visible = {"method": request.method, "path": path, "reason": decision.reason or None, **more}
        line.update({key: value for key, value in visible.items() if value is not None})
        if events.listeners:
            events.emit("network", request.host.name, {**line, **self.log.count_for_audit()})
        if self._audit is not None:
            self._audit(json.dumps({"time": round(time.time(), 3), "event": "network", **line}, ensure_ascii=True))
