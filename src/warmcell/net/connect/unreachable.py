"""Errors about names that a guest may look up but not reach.

A guest that learns what a name resolves to, or whether it resolves at all, can map the host's network. So a name that
does not exist and one that resolves to a forbidden address look the same to the guest, unless the policy names that
exact host. The host's code and the audit log see the difference.
"""

from __future__ import annotations

from warmcell.core.errors import FetchFailed
from warmcell.core.types import Denial
from warmcell.net.rules.rule_book import EgressRequest

RULE = "public addresses only"
_HINT = "the name does not exist or resolves to an address that the policy does not allow; the audit log says which"


class Unreachable(FetchFailed):
    """The message is for the host; `as_guest_error` makes the guest's version."""

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
    return error
