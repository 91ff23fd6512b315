"""The short form of `scripts/siege`, and whether it is awake."""

from __future__ import annotations

import pytest
from tests.siege.fuzzer import Broken, Rule, fuzz, host, may

import warmcell.enforcers.mounts
from warmcell import ExecRequest, ProcessBackend, SandboxPolicyBuilder
from warmcell.languages.config import ProcessConfig

pytestmark = pytest.mark.needs("linux", "user namespaces")


@pytest.mark.claim("WC-FS-2")
@pytest.mark.claim("WC-FS-3")
def test_no_program_does_what_its_policy_does_not_allow() -> None:
    with host() as made:
        fuzz(made, 60)
        assert made.tried >= 60 and made.refused < made.tried / 2


@pytest.mark.attack("S2-02")
def test_the_fuzzer_finds_the_rename_around_a_read_only_path_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mend is that the directories on the way are mount points: without them, no more than chance finds it."""
    monkeypatch.setattr(warmcell.enforcers.mounts, "_anchors", lambda *_: iter(()))
    # The manager notices it as well: the rename ends a mount, as one by the host does.
    with host() as made, pytest.raises(Broken, match=r"changed: |the host replaced"):
        for number in (19, 26, 79, 160):  # one of the first cases of each of these, unless they are drawn otherwise
            fuzz(made, 100, number)


@pytest.mark.parametrize(
    ("rules", "path", "mode", "is_allowed"),
    [
        ([], "/t/a", "r", False),
        ([Rule("/t/a", "/t/a", False)], "/t/a/f", "r", True),
        ([Rule("/t/a", "/t/a", False)], "/t/a/f", "w", False),
        ([Rule("/t/a", "/t/a", False)], "/t/ab", "r", False),
        ([Rule("/t/a", "/t/a", True), Rule("/t/a/b", "/t/a/b", False)], "/t/a/f", "w", True),
        ([Rule("/t/a", "/t/a", True), Rule("/t/a/b", "/t/a/b", False)], "/t/a/b/f", "w", False),
        ([Rule("/t/a", "/t/a", True), Rule("/t/a/b", "/data", False)], "/t/a/b/f", "w", True),
        ([Rule("/t/a", "/data", True), Rule("/t/b", "/data/b", False)], "/t/a/b/f", "r", False),
    ],
)
def test_the_checker_knows_what_a_policy_means(rules: list[Rule], path: str, mode: str, is_allowed: bool) -> None:
    assert may(rules, path, mode) is is_allowed


def test_a_manager_outlives_any_number_of_policies() -> None:
    """Found by the fuzzer: the order for the 123rd kind of cell, which begins with the byte of a brace, was read as JSON."""
    config = ProcessConfig(pool_size=0, pool_min=0)
    managers: set[int] = set()
    with ProcessBackend(config) as backend:
        for number in range(130):
            policy = SandboxPolicyBuilder().allow_read("/usr", at=f"/data/{number}").build()
            one = ProcessBackend(config, policy=policy)
            one._launcher.pool.close()
            one._launcher.pool = backend._launcher.pool
            assert one.execute_blocking(ExecRequest("python", "print(1)", 30)).stdout == "1\n"  # type: ignore[arg-type]
            managers.update(backend.zygote_pids)
    assert len(managers) == 1
