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
    for contradiction in (
        lambda: SandboxPolicyBuilder().allow_domain("x.org").allow_network(),
        lambda: SandboxPolicyBuilder().allow_network().allow_domain("x.org"),
    ):
        with pytest.raises(PolicyViolation, match="not both"):
            contradiction()


def test_the_wider_of_two_rules_for_one_path_holds() -> None:
    wide = (AllowedPath("/a", AccessMode.READ_WRITE),)
    assert SandboxPolicyBuilder().allow_read("/a").allow_read_write("/a/").build().allowed_paths == wide
    assert SandboxPolicyBuilder().allow_read_write("/a").allow_read("/a").build().allowed_paths == wide


def test_a_domain_without_ports_is_refused_with_the_remedy() -> None:
    with pytest.raises(PolicyViolation, match="name ports, or leave them out"):
        SandboxPolicyBuilder().allow_domain("x.org", [])


@pytest.mark.attack("S2-08")
@pytest.mark.claim("WC-FS-3")
@pytest.mark.parametrize(
    "target",
    ["/", "/code", "/code/x", "/out", "/out/main", "/tmp", "/home", "/home/sandbox", "/dev", "/dev/shm", "/proc/self"],
)
def test_the_cages_own_places_cannot_be_taken(target: str, tmp_path: Path) -> None:
    for allow in (SandboxPolicyBuilder().allow_read, SandboxPolicyBuilder().allow_read_write):
        with pytest.raises(PolicyViolation, match="at="):
            allow(tmp_path, at=target)


@pytest.mark.parametrize("target", ["/work", "/work/data", "/tmp/data", "/home/alice", "/coder", "/output", "/etc"])
def test_places_in_and_beside_them_can(target: str, tmp_path: Path) -> None:
    assert SandboxPolicyBuilder().allow_read(tmp_path, at=target).build().allowed_paths[0].target == target


def test_a_policy_can_be_extended() -> None:
    base = SandboxPolicyBuilder().allow_read("/a").build()
    assert len(SandboxPolicyBuilder(base).allow_read("/b").build().allowed_paths) == 2
    assert len(base.allowed_paths) == 1


def test_a_domain_means_its_web_ports() -> None:
    policy = SandboxPolicyBuilder().allow_domain("x.org").build()
    assert policy == SandboxPolicy(network_rules=(NetworkRule("x.org", (80, 443), None, None),))
