"""Which policy fields each enforcer supports. Unsupported ones are refused, never ignored. Pure module."""

from __future__ import annotations

from warmcell.core.errors import EnforcerUnavailable
from warmcell.policy.model import SandboxPolicy

_ALL_BUT_DOMAINS = frozenset({"allowed_paths", "allow_network", "allow_process_spawn", "env", "limits"})

#: A new policy field is refused by every enforcer until it is added here. Third-party enforcers are assumed to support
#: the fields that existed when they were written.
SUPPORTED_FIELDS: dict[str | None, frozenset[str]] = {
    "native": _ALL_BUT_DOMAINS | {"network_rules", "gpus", "allow_tracing"},
    "seatbelt": _ALL_BUT_DOMAINS | {"network_rules"},
    None: _ALL_BUT_DOMAINS - {"allowed_paths"},
    "wasm": frozenset({"limits", "allow_process_spawn"}),
}

_WHY = {
    "network_rules": "cannot enforce rules by domain, only the whole network or none",
    "gpus": "cannot allow single devices",
    "allow_tracing": "cannot protect its supervisor from a guest that traces",
    "allowed_paths": "does not confine files, so paths would have no effect",
}


def find_unsupported_fields(enforcer: str | None, policy: SandboxPolicy) -> list[str]:
    """The fields that the policy uses and that this enforcer (None: the bare class) does not support."""
    supported, empty = SUPPORTED_FIELDS.get(enforcer, _ALL_BUT_DOMAINS), SandboxPolicy()
    return [
        name for name in policy.__slots__ if name not in supported and getattr(policy, name) != getattr(empty, name)
    ]


def check_supported(enforcer: str | None, policy: SandboxPolicy, has_egress: bool = False) -> None:
    """Refuse a policy that this enforcer does not support. A fetch policy counts as domain rules."""
    missing = find_unsupported_fields(enforcer, policy)
    if has_egress and "network_rules" not in SUPPORTED_FIELDS.get(enforcer, _ALL_BUT_DOMAINS):
        missing.append("network_rules")
    if missing:
        why = _WHY.get(missing[0], f"does not support the policy's {missing[0]}")
        raise EnforcerUnavailable(enforcer or "process", why, hint="use the native enforcer with this policy")
