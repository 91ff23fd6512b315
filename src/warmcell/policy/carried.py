"""Which fields of a policy each enforcer can carry out. What it cannot is refused, never dropped. Pure module."""

from __future__ import annotations

from warmcell.core.errors import EnforcerUnavailable
from warmcell.policy.model import SandboxPolicy

_ALL_BUT_DOMAINS = frozenset({"allowed_paths", "allow_network", "allow_process_spawn", "env", "limits"})

#: A new field of the policy is refused by everybody until somebody adds it here. Enforcers of other packages are taken
#: to know what was there when they were written.
CARRIED: dict[str | None, frozenset[str]] = {
    "native": _ALL_BUT_DOMAINS | {"network_rules"},
    "seatbelt": _ALL_BUT_DOMAINS | {"network_rules"},
    None: _ALL_BUT_DOMAINS - {"allowed_paths"},
    "wasm": frozenset({"limits", "allow_process_spawn"}),
}

_WHY = {
    "network_rules": "cannot keep rules by domain: it can only give the whole network or none",
    "allowed_paths": "does not confine files, so naming paths would mean nothing",
}


def uncarried(carrier: str | None, policy: SandboxPolicy) -> list[str]:
    """The fields that say something and that this enforcer (None: the bare class) would have to ignore."""
    carried, empty = CARRIED.get(carrier, _ALL_BUT_DOMAINS), SandboxPolicy()
    return [name for name in policy.__slots__ if name not in carried and getattr(policy, name) != getattr(empty, name)]


def check_carried(enforcer: str | None, policy: SandboxPolicy, has_egress: bool = False) -> None:
    """Refuses a policy that this enforcer cannot keep. A fetch policy is rules by domain too."""
    missing = uncarried(enforcer, policy)
    if has_egress and "network_rules" not in CARRIED.get(enforcer, _ALL_BUT_DOMAINS):
        missing.append("network_rules")
    if missing:
        why = _WHY.get(missing[0], f"does not know the policy's {missing[0]}")
        raise EnforcerUnavailable(enforcer or "process", why, hint="use the native enforcer with this policy")
