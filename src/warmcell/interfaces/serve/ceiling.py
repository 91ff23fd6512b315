"""What a request may ask for at most. Pure module.

A policy file says what it says; what it does not say is bounded here, because whoever reaches a server is not the one
who owns the machine. What a request does not ask for is the usual amount, not all that it could have had.
"""

from __future__ import annotations

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import replace
from warmcell.core.types import MIB, EffectiveLimits, Limits
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import DEFAULT_POLICY

#: Of a run that says nothing, where the server allows as much.
USUAL_SECONDS = 30.0
MOST = Limits(memory_mb=4096, processes=1024, open_files=8192, disk_mb=2048, output_bytes=16 * MIB)


def ceiling(policy: SandboxPolicy | None) -> SandboxPolicy:
    """The policy that the server's backend has."""
    policy = policy or DEFAULT_POLICY
    stated = policy.limits or Limits()
    missing = {name: getattr(MOST, name) for name in MOST.__slots__ if getattr(stated, name) is None}
    return replace(policy, limits=replace(stated, **missing))


def asked_limits(asked: Limits | None, file_policy: SandboxPolicy | None) -> Limits:
    """What holds for a request, the ceiling aside: what it says, what the policy file says, or the usual amount."""
    asked, stated = asked or Limits(), (file_policy.limits if file_policy else None) or Limits()
    usual = EffectiveLimits()
    unsaid = [name for name in Limits.__slots__ if getattr(asked, name) is None and getattr(stated, name) is None]
    return replace(asked, **{name: getattr(usual, name) for name in unsaid})


def check_time(seconds: float, most: float, field: str = "timeout") -> float:
    if seconds > most:
        raise InvalidRequest(f"must be at most {most:g} on this server", field=field)
    return seconds
