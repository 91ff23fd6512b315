"""The limits of a request: its own, the policy file's, the server's maximum; a tenant's share of slots. Pure module.

Limits that the policy file leaves out are bounded here, because the clients of a server do not own the machine. A
request that sets no limit gets the default, not the maximum.
"""

from __future__ import annotations

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import replace
from warmcell.core.types import MIB, EffectiveLimits, Limits
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import DEFAULT_POLICY

#: The timeout of runs that set none, unless the server's maximum is less.
DEFAULT_TIMEOUT = 30.0
MAXIMUM = Limits(memory_mb=4096, processes=1024, open_files=8192, disk_mb=2048, output_bytes=16 * MIB)


def server_policy(policy: SandboxPolicy | None) -> SandboxPolicy:
    """The policy file's policy, with the maximum for each limit that it leaves out."""
    policy = policy or DEFAULT_POLICY
    stated = policy.limits or Limits()
    missing = {name: getattr(MAXIMUM, name) for name in MAXIMUM.__slots__ if getattr(stated, name) is None}
    return replace(policy, limits=replace(stated, **missing))


def resolve_limits(asked: Limits | None, file_policy: SandboxPolicy | None) -> Limits:
    """The request's limits; the default for those that neither it nor the policy file sets."""
    asked, stated = asked or Limits(), (file_policy.limits if file_policy else None) or Limits()
    default = EffectiveLimits()
    unset = [name for name in Limits.__slots__ if getattr(asked, name) is None and getattr(stated, name) is None]
    return replace(asked, **{name: getattr(default, name) for name in unset})


def share_of_slots(tenant: Tenant, slots: int, *, has_others: bool) -> int:
    """How many slots the tenant may hold: with several tenants, some are always left to the others."""
    most = max(1, slots - max(1, slots // 8)) if has_others else slots
    return max(1, min(tenant.runs, most))


def check_timeout(seconds: float, maximum: float, field: str = "timeout") -> float:
    if seconds > maximum:
        raise InvalidRequest(f"must be at most {maximum:g} on this server", field=field)
    return seconds
