"""The probe's judgement: each thing that a broken cage would show is noticed."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from warmcell.core.errors import EnforcerUnavailable
from warmcell.enforcers import bubblewrap
from warmcell.enforcers.bubblewrap import NAMESPACES, find_problems, probe, remedy

HOST = {name: f"{name}:[1]" for name in NAMESPACES}
GOOD = "\n".join(
    [
        *(f"namespace {name} {name}:[2]" for name in NAMESPACES),
        "net Inter-|   Receive",
        "net lo:       0       0",
        *(f"status Cap{name}:\t0000000000000000" for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")),
        "status NoNewPrivs:\t1",
        "workspace",
        "end",
    ]
)


def test_a_good_report_has_no_problems() -> None:
    assert find_problems(GOOD, HOST) == []


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_shared_or_unknown_namespace_is_a_problem(name: str) -> None:
    assert find_problems(GOOD.replace(f"{name}:[2]", f"{name}:[1]"), HOST) == [f"shares the {name} namespace"]
    assert find_problems(GOOD.replace(f"namespace {name} {name}:[2]\n", ""), HOST) == [f"shares the {name} namespace"]


@pytest.mark.parametrize("name", ["Inh", "Prm", "Eff", "Bnd", "Amb"])
def test_a_capability_left_behind_is_a_problem(name: str) -> None:
    kept = GOOD.replace(f"Cap{name}:\t0000000000000000", f"Cap{name}:\t0000000000200000")
    assert find_problems(kept, HOST) == [f"keeps capabilities (Cap{name})"]
    assert find_problems(GOOD.replace(f"status Cap{name}:\t0000000000000000\n", ""), HOST)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("net eth0: 1 2", "network interfaces ['eth0', 'lo']"),
        ("tmp /tmp/x", "tmp /tmp/x"),
        ("canary /tmp/c", "canary /tmp/c"),
        ("writable /", "writable /"),
    ],
)
def test_anything_of_the_host_is_a_problem(line: str, problem: str) -> None:
    assert find_problems(line + "\n" + GOOD, HOST) == [problem]


@pytest.mark.parametrize("line", ["workspace", "end", "status NoNewPrivs:\t1", "net lo:       0       0"])
def test_a_missing_fact_is_a_problem(line: str) -> None:
    assert len(find_problems("\n".join(item for item in GOOD.splitlines() if item != line), HOST)) == 1


def test_silence_is_not_consent() -> None:
    assert len(find_problems("", HOST)) >= 10


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("bwrap: setting up uid map: Permission denied", "user namespaces"),
        ("bwrap: No permissions to create new namespace, likely because", "user namespaces"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "user namespaces"),
        ("bwrap: something else", "doctor"),
    ],
)
def test_remedies(said: str, word: str) -> None:
    assert word in remedy(said)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A bwrap that answers as this says."""
    answer: dict[str, Any] = {"returncode": 0, "stdout": b"", "stderr": b""}
    probe.cache_clear()
    monkeypatch.setattr(
        bubblewrap.subprocess,
        "run",
        lambda *_, **__: subprocess.CompletedProcess([], **answer),  # type: ignore[attr-defined]
    )
    return answer


def test_a_bwrap_that_does_not_isolate_is_unavailable(broken: dict[str, Any]) -> None:
    broken["stdout"] = (GOOD + "\ncanary /x").encode()
    with pytest.raises(EnforcerUnavailable, match=r"does not isolate: .*canary /x"):
        probe(("/fake/bwrap", 1, 1, 1), list)


def test_a_bwrap_that_fails_is_unavailable_and_asked_again(broken: dict[str, Any]) -> None:
    broken.update(returncode=1, stderr=b"bwrap: setting up uid map: Permission denied\n")
    with pytest.raises(EnforcerUnavailable, match="uid map") as caught:
        probe(("/fake/bwrap", 1, 1, 1), list)
    assert caught.value.hint and "user namespaces" in caught.value.hint
    names = "\n".join(f"namespace {name} other" for name in NAMESPACES)
    broken.update(returncode=0, stdout=(names + "\n" + GOOD.split("uts:[2]\n")[1]).encode())
    probe(("/fake/bwrap", 1, 1, 1), list)


def test_a_bwrap_that_hangs_is_unavailable(broken: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("bwrap", 15)

    monkeypatch.setattr(bubblewrap.subprocess, "run", hang)  # type: ignore[attr-defined]
    with pytest.raises(EnforcerUnavailable, match="did not end within 15 s"):
        probe(("/fake/bwrap", 1, 1, 1), list)


@pytest.mark.needs("linux")
def test_the_probe_runs_without_new_privileges_as_guests_do() -> None:
    assert "NoNewPrivs:\t1" in bubblewrap._run(["/bin/cat", "/proc/self/status"])
