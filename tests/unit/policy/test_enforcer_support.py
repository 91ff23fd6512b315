"""Policy fields that an enforcer does not support are refused, and so are fields that it does not know."""

from __future__ import annotations

import pytest

from warmcell.core.errors import EnforcerUnavailable
from warmcell.core.types import Limits
from warmcell.enforcers.registry import ENFORCERS
from warmcell.policy import enforcer_support
from warmcell.policy.enforcer_support import SUPPORTED_FIELDS, check_supported, find_unsupported_fields
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
    assert find_unsupported_fields(enforcer, FULL) == missing
    assert find_unsupported_fields(enforcer, SandboxPolicy()) == []


@pytest.mark.parametrize("enforcer", [*ENFORCERS, None, "of another package"])
def test_an_unlisted_field_is_refused_by_every_enforcer(enforcer: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`env` stands in for a field that was added to the policy and nowhere else."""
    monkeypatch.setattr(
        enforcer_support, "SUPPORTED_FIELDS", {name: fields - {"env"} for name, fields in SUPPORTED_FIELDS.items()}
    )
    monkeypatch.setattr(enforcer_support, "_ALL_BUT_DOMAINS", enforcer_support._ALL_BUT_DOMAINS - {"env"})
    with pytest.raises(EnforcerUnavailable, match="does not support the policy's env"):
        check_supported(enforcer, SandboxPolicy(env={"A": "1"}))


@pytest.mark.parametrize("enforcer", ["bubblewrap", "landlock", None])
def test_a_fetch_policy_is_rules_by_domain(enforcer: str | None) -> None:
    with pytest.raises(EnforcerUnavailable, match="rules by domain"):
        check_supported(enforcer, SandboxPolicy(), has_egress=True)
    check_supported("native", SandboxPolicy(), has_egress=True)


def test_only_fields_that_exist_are_listed() -> None:
    assert frozenset.union(*SUPPORTED_FIELDS.values()) <= set(SandboxPolicy.__slots__)
    assert SUPPORTED_FIELDS["native"] == set(SandboxPolicy.__slots__)


def test_the_bare_class_says_why_it_takes_no_paths() -> None:
    check_supported(None, SandboxPolicy())
    with pytest.raises(EnforcerUnavailable, match="does not confine files, so paths would have no effect"):
        check_supported(None, SandboxPolicy((AllowedPath("/data"),)))
