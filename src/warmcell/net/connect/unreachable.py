"""What a guest hears about names that it may ask for and may not reach.

A guest that is told where a name leads, or only whether it leads anywhere, can map the names of the network around the
host. So a name that does not exist and one that leads where the rules do not are the same to it (unless the policy
names that very host); the host's own code and the audit learn the difference.
"""

from __future__ import annotations

from warmcell.core.errors import FetchFailed
from warmcell.core.types import Denial
from warmcell.net.rules.rule_book import Ask

RULE = "public addresses only"
_HINT = "the name does not exist, or it leads to an address that the policy does not open; the audit says which"


class Unreachable(FetchFailed):
    """The message is for the host. `for_guest` makes of it what may be told inside."""

    def __init__(self, message: str, *, where: str, reason: str, hint: str | None = None) -> None:
        super().__init__(message, reason=reason, hint=hint)
        self.where = where


def unreachable_denial(ask: Ask) -> Denial:
    """Models read denials, and so may whoever wrote the guest."""
    return Denial("network", f"{ask.host.in_url}:{ask.port}", RULE, _HINT)


def for_guest(error: FetchFailed) -> FetchFailed:
    """The error as it may cross into the sandbox."""
    if isinstance(error, Unreachable):
        return FetchFailed(f"refused: {error.where} cannot be reached from here", reason="refused")
    return error
