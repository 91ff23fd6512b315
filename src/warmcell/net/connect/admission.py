"""The gate: every connection of every way out passes here, and each decision leaves one audit line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from warmcell.core import events
from warmcell.core.errors import FetchFailed
from warmcell.core.types import Denial
from warmcell.net.connect.name_lookup import Resolver, addresses_of, system_resolver
from warmcell.net.connect.rate_limiter import RateLimiter
from warmcell.net.connect.unreachable import RULE, Unreachable, unreachable_denial
from warmcell.net.rules.addresses import is_own
from warmcell.net.rules.hosts import Host, IPAddress
from warmcell.net.rules.rule_book import Ask, Decision, RuleBook

AuditSink = Callable[[str], None]
"""Receives one line of JSON (without its newline) for each decision. When it raises, nothing goes out."""

DenialSink = Callable[[Denial], None]


class Gate:
    """A rule book together with what is needed to apply it: resolver, rate limit, and who wants to hear of it.

    `rules` may be replaced at any time, from any thread; the next decision uses the new book.
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
    ) -> None:
        self.rules = rules
        self.limiter = limiter or RateLimiter(None)
        self._resolver = resolver or system_resolver
        self._audit = audit
        self._on_denial = on_denial
        self._is_own = is_own_address

    async def admit(self, ask: Ask, via: str) -> tuple[tuple[IPAddress, ...], Decision]:
        """The addresses that may be dialled, and the decision that allowed it. Raises `FetchFailed` otherwise."""
        # One book for the whole decision, even when another one arrives while the name is being resolved.
        rules = self.rules
        decision = self.judge(ask, via, rules)
        addresses = await self._resolved(ask, via, rules)
        for address in addresses:
            verdict = rules.judge_address(address, ask.port, self._is_own)
            if verdict.allowed:
                verdict = rules.judge_at(ask, address) or verdict
            if not verdict.allowed:
                raise self._refuse_address(ask, verdict, via, address)
            decision = replace(decision, looks_inside=decision.looks_inside or verdict.looks_inside)
        self._record(ask, decision, via, addresses=[str(address) for address in addresses])
        return addresses, decision

    async def _resolved(self, ask: Ask, via: str, rules: RuleBook) -> tuple[IPAddress, ...]:
        try:
            return await addresses_of(ask.host, ask.port, self._resolver)
        except FetchFailed as error:
            if rules.names(ask.host):  # no secret to whoever reads the policy; under a wildcard it would be one
                raise
            self._record(ask, Decision(False, RULE, error.message), via)
            if self._on_denial is not None:
                self._on_denial(unreachable_denial(ask))
            raise Unreachable(error.message, where=ask.host.name, reason=error.reason) from None

    def _refuse_address(self, ask: Ask, verdict: Decision, via: str, address: IPAddress) -> FetchFailed:
        """A guest that wrote the address itself is told what is wrong with it; one that wrote a name is not."""
        if ask.host.address is not None:
            return self.refuse(ask, verdict, via)
        self._record(ask, verdict, via, addresses=[str(address)])
        if self._on_denial is not None:
            self._on_denial(unreachable_denial(ask))
        message = f"{verdict.reason} (rule: {verdict.rule})"
        return Unreachable(message, where=ask.host.name, reason="refused", hint=verdict.hint or None)

    def judge(self, ask: Ask, via: str, rules: RuleBook | None = None) -> Decision:
        """The rule book's and the rate limit's word, before any name is looked up."""
        decision = (rules or self.rules).judge(ask)
        if not decision.allowed:
            raise self.refuse(ask, decision, via)
        # The requests inside a readable tunnel are counted when they come.
        if not ask.is_readable and not self.limiter.admit(ask.host.name):
            limited = Decision(False, "rate_limit", f"too many requests to {ask.host}", "wait, or raise rate_limit")
            raise self.refuse(ask, limited, via, reason="rate_limited")
        return decision

    def refuse(self, ask: Ask, decision: Decision, via: str, *, reason: str = "refused") -> FetchFailed:
        """Records the refusal, reports it, and gives back the error to raise."""
        self._record(ask, decision, via)
        if self._on_denial is not None:
            what = f"{ask.host.in_url}:{ask.port}"
            self._on_denial(Denial("network", what, decision.rule, decision.hint or decision.reason))
        return FetchFailed(f"{decision.reason} (rule: {decision.rule})", reason=reason, hint=decision.hint or None)

    def refuse_unread(self, reason: str, via: str) -> None:
        """Records a request that was refused before it could be said where it would have gone."""
        nowhere, rule = Ask(Host(""), 0), "default: ambiguous requests are refused"
        self._record(nowhere, Decision(False, rule, reason), via)
        if self._on_denial is not None:
            self._on_denial(Denial("network", "an ambiguous request", rule, reason))

    def _record(self, ask: Ask, decision: Decision, via: str, **more: Any) -> None:
        if self._audit is None and not events.listeners:
            return
        line: dict[str, Any] = {
            "via": via,
            "decision": "allow" if decision.allowed else "deny",
            "rule": decision.rule,
            "host": ask.host.name,
            "port": ask.port,
        }
        # The query stays out: it is where tokens travel.
        visible = {"method": ask.method, "path": ask.path, "reason": decision.reason or None, **more}
        line.update({key: value for key, value in visible.items() if value is not None})
        if events.listeners:
            events.emit("network", ask.host.name, line)
        if self._audit is not None:
            self._audit(json.dumps({"time": round(time.time(), 3), "event": "network", **line}, ensure_ascii=True))
