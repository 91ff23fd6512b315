"""`warmcell doctor` renders what was examined."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest


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
