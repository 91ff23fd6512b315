"""`warmcell eval` over a scripted backend."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.interfaces.cli.conftest import Ended, Scripted

from warmcell import ExecutionFailed

Command = Callable[..., Ended]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "cases": [{"expected": "1"}]}\n')
    (tmp_path / "samples.jsonl").write_text('{"id": "a", "code": "x"}\n{"id": "a", "code": "y"}\n')
    return [str(tmp_path / "tasks.jsonl"), str(tmp_path / "samples.jsonl"), "--out", str(tmp_path / "out.jsonl")]


def test_a_table_then_a_report_without_judging_again(
    process: Scripted, warmcell: Command, files: list[str], tmp_path: Path
) -> None:
    process.answer("1", "2")
    ended = warmcell("eval", *files, "--k", "1,2,3")
    assert ended.status == 0
    assert "pass@1: 0.5000\npass@2: 1.0000\n" in ended.stdout and "2 judged" in ended.stdout
    assert ended.stderr == "warning: no pass@3: a task has 2 samples, fewer than 3\n"
    ended = warmcell("eval", *files, "--json", "--report", str(tmp_path / "report.html"))
    plain = json.loads(ended.stdout)
    assert (plain["judged_now"], plain["pass_at"], plain["counts"]) == (
        0,
        {"1": 0.5},
        {"accepted": 1, "wrong_answer": 1},
    )
    assert "50.00%" in (tmp_path / "report.html").read_text()


def test_what_could_not_be_judged_has_a_status_of_its_own(
    process: Scripted, warmcell: Command, files: list[str]
) -> None:
    process.fake.when(ExecutionFailed("a bad moment"))
    ended = warmcell("eval", *files)
    assert ended.status == 125 and "could not be judged" in ended.stderr and "run the command again" in ended.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--k", "0"], "--k"),
        (["--k", "1,x"], "--k"),
        (["--jobs", "0"], "--jobs"),
        (["--out", "/missing/x"], "no such file"),
    ],
)
def test_wrong_usage(process: Scripted, warmcell: Command, files: list[str], options: list[str], said: str) -> None:
    ended = warmcell("eval", *files, *options)
    assert ended.status == 2 and said in ended.stderr and process.fake.requests == []
