"""The builder says what the model says, and builders never share."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmcell.core.errors import PolicyViolation
from warmcell.core.types import Limits
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import AccessMode, AllowedPath, NetworkRule, SandboxPolicy


def test_without_calls_it_denies_everything() -> None:
    assert SandboxPolicyBuilder().build() == SandboxPolicy()


def test_a_whole_policy() -> None:
    built = (
        SandboxPolicyBuilder()
        .allow_read("/data")
        .allow_read_write("/out", at="/results")
        .allow_domain("example.com", [443], methods=["GET"], path_prefixes=["/v1"])
        .allow_process_spawn()
        .env("A", "1")
        .env("B", "2")
        .limits(Limits(memory_mb=64))
        .build()
    )
    assert built == SandboxPolicy(
        (AllowedPath("/data"), AllowedPath("/out", AccessMode.READ_WRITE, "/results")),
        network_rules=(NetworkRule("example.com", (443,), ("GET",), ("/v1",)),),
        allow_process_spawn=True,
        env={"A": "1", "B": "2"},
        limits=Limits(memory_mb=64),
    )


def test_each_call_leaves_the_builder_it_was_called_on_alone() -> None:
    closed = SandboxPolicyBuilder()
    closed.allow_network()
    closed.allow_read("/data")
    assert closed.build() == SandboxPolicy()


def test_relative_paths_mean_the_callers_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert SandboxPolicyBuilder().allow_read("data").build().allowed_paths[0].path == str(tmp_path / "data")


def test_later_additions_never_widen_silently() -> None:
    with pytest.raises(PolicyViolation):
        SandboxPolicyBuilder().allow_domain("x.org").allow_network()
    with pytest.raises(PolicyViolation):
        SandboxPolicyBuilder().allow_read("/a").allow_read_write("/a")


def test_a_policy_can_be_extended() -> None:
    base = SandboxPolicyBuilder().allow_read("/a").build()
    assert len(SandboxPolicyBuilder(base).allow_read("/b").build().allowed_paths) == 2
    assert len(base.allowed_paths) == 1
