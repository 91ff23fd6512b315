"""The effective limits, from the policy, the request and the defaults."""

from __future__ import annotations

import pytest

from warmcell.core.types import EffectiveLimits, Limits
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import effective_limits

SILENT, M64, M1024 = None, Limits(memory_mb=64), Limits(memory_mb=1024)


@pytest.mark.parametrize(
    ("policy", "requested", "memory_mb", "holds"),
    [
        (SILENT, SILENT, None, 512),
        (SILENT, SILENT, 1024, 1024),
        (SILENT, M1024, None, 1024),
        (SILENT, M1024, 64, 64),
        (SILENT, M64, 1024, 64),
        (M64, SILENT, None, 64),
        (M64, SILENT, 1024, 64),
        (M64, M1024, None, 64),
        (M1024, SILENT, None, 1024),
        (M1024, SILENT, 64, 64),
        (M1024, M64, None, 64),
        (Limits(disk_mb=9), SILENT, None, 512),
        (Limits(disk_mb=9), SILENT, 2048, 2048),
        (Limits(disk_mb=9), Limits(processes=3), 2048, 2048),
    ],
)
@pytest.mark.claim("WC-PT-2")
def test_memory(policy: Limits | None, requested: Limits | None, memory_mb: int | None, holds: int) -> None:
    assert effective_limits(SandboxPolicy(limits=policy), requested, memory_mb).memory_mb == holds


@pytest.mark.parametrize("name", Limits.__slots__)
def test_the_policy_is_the_ceiling_of_every_limit(name: str) -> None:
    policy = SandboxPolicy(limits=Limits(**{name: 2}))
    assert effective_limits(policy, Limits(**{name: 3})) == EffectiveLimits(**{name: 2})
    assert effective_limits(policy, Limits(**{name: 1})) == EffectiveLimits(**{name: 1})
    assert effective_limits(policy) == EffectiveLimits(**{name: 2})
    assert effective_limits(SandboxPolicy(), Limits(**{name: 3})) == EffectiveLimits(**{name: 3})


def test_what_a_request_does_not_set_stays_the_policys() -> None:
    """A request for more output must not bring the memory back to its default."""
    policy = SandboxPolicy(limits=Limits(memory_mb=2048, processes=9))
    assert effective_limits(policy, Limits(output_bytes=7)) == EffectiveLimits(2048, processes=9, output_bytes=7)
