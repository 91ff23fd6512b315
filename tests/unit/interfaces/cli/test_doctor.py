"""`warmcell doctor` renders what was examined."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from tests.unit.backends.stand_in_nodes import StandInNodes

from warmcell import EnforcerUnavailable


@dataclass(frozen=True)
class Row:
    name: str
    status: str
    mechanism: str | None = None
    proof: str | None = None
    remedy: str | None = None


@dataclass(frozen=True)
class Report:
    rows: list[Row]
    default_available: bool


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(rows: list[Row], default_available: bool) -> None:
        module = ModuleType("warmcell.diagnosis.doctor")
        module.examine = lambda: Report(rows, default_available)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "warmcell.diagnosis.doctor", module)

    return give


def test_a_table_with_remedies(warmcell: Any, report: Any) -> None:
    report([Row("network", "works", "namespace", "no route"), Row("memory", "weaker", remedy="delegate cgroups")], True)
    ended = warmcell("doctor")
    assert ended.status == 0
    assert ended.stdout.splitlines() == [
        "NAME     STATUS  MECHANISM  PROOF",
        "network  works   namespace  no route",
        "memory   weaker  -          -",
        "    remedy: delegate cgroups",
    ]


def test_the_status_says_whether_the_default_works(warmcell: Any, report: Any) -> None:
    report([Row("user namespaces", "missing", remedy="sysctl")], False)
    ended = warmcell("doctor")
    assert ended.status == 1
    assert "error: the default isolation class" in ended.stderr


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> StandInNodes:
    """Two nodes; one of them cannot run anything."""
    found = StandInNodes("a", "b")
    found.unfit["b"] = EnforcerUnavailable("native", "no user namespaces")
    monkeypatch.setattr("warmcell.diagnosis.cluster.RayBackend", lambda address, config: found.backend())
    return found


def test_a_table_for_each_node(warmcell: Any, report: Any, nodes: StandInNodes) -> None:
    report([Row("network", "works", "namespace", "no route")], True)
    ended = warmcell("doctor", "--cluster")
    assert ended.status == 1
    assert "error: the default isolation class does not work on 1 of 2 nodes" in ended.stderr
    first, second = ended.stdout.split("\n\n")
    assert first.splitlines()[0] == "node a at 127.0.0.1, 2 processors: works"
    assert first.splitlines()[2] == "network  works   namespace  no route"
    assert "node b at 127.0.0.1, 2 processors: does not work" in second and "no user namespaces" in second


def test_the_status_is_that_of_all_nodes(warmcell: Any, report: Any, nodes: StandInNodes) -> None:
    del nodes.unfit["b"]
    report([Row("network", "works", "namespace", "no route")], True)
    ended = warmcell("doctor", "--cluster", "--json")
    assert ended.status == 0
    assert [(node["id"], node["default_available"]) for node in json.loads(ended.stdout)["nodes"]] == [
        ("a", True),
        ("b", True),
    ]
    report([Row("network", "missing")], False)
    assert warmcell("doctor", "--cluster").status == 1


def test_json(warmcell: Any, report: Any) -> None:
    report([Row("network", "works", "namespace", "no route")], True)
    plain = json.loads(warmcell("doctor", "--json").stdout)
    assert plain["default_available"] is True
    assert plain["rows"][0] == {
        "name": "network",
        "status": "works",
        "mechanism": "namespace",
        "proof": "no route",
        "remedy": None,
    }
