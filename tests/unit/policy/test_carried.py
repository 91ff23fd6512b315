"""What an enforcer cannot keep of a policy is refused, and so is whatever it has never heard of."""

from __future__ import annotations

import pytest

from warmcell.core.errors import EnforcerUnavailable
from warmcell.core.types import Limits
from warmcell.enforcers.registry import enforcer_names
from warmcell.policy import carried
from warmcell.policy.carried import CARRIED, check_carried, uncarried
from warmcell.policy.model import AllowedPath, NetworkRule, SandboxPolicy

FULL = SandboxPolicy(
    (AllowedPath("/data"),),
    network_rules=(NetworkRule("x.org"),),
    allow_process_spawn=True,
    env={"A": "1"},
    limits=Limits(memory_mb=1),
)


@pytest.mark.parametrize(
    ("enforcer", "missing"),
    [
        ("native", []),
        ("seatbelt", []),
        ("bubblewrap", ["network_rules"]),
        ("landlock", ["network_rules"]),
        ("appcontainer", ["network_rules"]),
        ("of another package", ["network_rules"]),
        (None, ["allowed_paths", "network_rules"]),
        ("wasm", ["allowed_paths", "network_rules", "env"]),
    ],
)
def test_who_carries_what(enforcer: str | None, missing: list[str]) -> None:
    assert uncarried(enforcer, FULL) == missing
    assert uncarried(enforcer, SandboxPolicy()) == []


@pytest.mark.parametrize("enforcer", [*enforcer_names(), None, "of another package"])
def test_a_field_that_nobody_listed_is_refused_by_everybody(
    enforcer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`env` stands in for a field that was added to the policy and nowhere else."""
    monkeypatch.setattr(carried, "CARRIED", {name: fields - {"env"} for name, fields in CARRIED.items()})
    monkeypatch.setattr(carried, "_ALL_BUT_DOMAINS", carried._ALL_BUT_DOMAINS - {"env"})
    with pytest.raises(EnforcerUnavailable, match="does not know the policy's env"):
        check_carried(enforcer, SandboxPolicy(env={"A": "1"}))


@pytest.mark.parametrize("enforcer", ["bubblewrap", "landlock", None])
def test_a_fetch_policy_is_rules_by_domain(enforcer: str | None) -> None:
    with pytest.raises(EnforcerUnavailable, match="rules by domain"):
        check_carried(enforcer, SandboxPolicy(), has_egress=True)
    check_carried("native", SandboxPolicy(), has_egress=True)


def test_only_fields_that_exist_are_listed() -> None:
    assert frozenset.union(*CARRIED.values()) <= set(SandboxPolicy.__slots__)
    assert CARRIED["native"] == set(SandboxPolicy.__slots__)


def test_the_bare_class_says_why_it_takes_no_paths() -> None:
    check_carried(None, SandboxPolicy())
    with pytest.raises(EnforcerUnavailable, match="does not confine files, so naming paths would mean nothing"):
        check_carried(None, SandboxPolicy((AllowedPath("/data"),)))
