"""`warmcell judge` over a scripted backend, and once over the real one."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import require
from tests.unit.interfaces.cli.command import warmcell as real_warmcell
from tests.unit.interfaces.cli.conftest import Ended, Scripted

from warmcell import BuildFailed, ExecResult, ExecutionFailed

Command = Callable[..., Ended]


@pytest.fixture
def task(tmp_path: Path) -> list[str]:
    (tmp_path / "solution.py").write_text("print(input())")
    for name in ("1", "2"):
        (tmp_path / f"{name}.in").write_text(name)
        (tmp_path / f"{name}.out").write_text(f"{name}\n")
    return [str(tmp_path / "solution.py"), "--cases", str(tmp_path)]


def test_a_table_and_the_status(process: Scripted, warmcell: Command, task: list[str]) -> None:
    process.answer("1\n", "2\n")
    ended = warmcell("judge", *task, "--jobs", "1")
    rows = [line.split()[:2] for line in ended.stdout.splitlines()]
    assert (ended.status, ended.stderr) == (0, "")
    assert rows == [["case", "verdict"], ["1", "accepted"], ["2", "accepted"], ["2", "of"]]


def test_one_that_was_not_accepted(process: Scripted, warmcell: Command, task: list[str]) -> None:
    process.answer("1\n", ExecResult(exit_code=1))
    ended = warmcell("judge", *task, "--jobs", "1")
    assert ended.status == 1
    assert "runtime_error" in ended.stdout and ended.stdout.endswith("1 of 2 accepted\n")


def test_what_could_not_be_judged_has_a_status_of_its_own(
    process: Scripted, warmcell: Command, task: list[str]
) -> None:
    process.answer(ExecutionFailed("a bad moment"), ExecutionFailed("a bad moment"), "wrong")
    ended = warmcell("judge", *task, "--jobs", "1")
    assert ended.status == 125
    assert "host_error" in ended.stdout and "a bad moment" in ended.stderr


def test_the_compilers_words_go_to_stderr(process: Scripted, warmcell: Command, task: list[str]) -> None:
    process.answer(BuildFailed(ExecResult(stderr="line 1: no\n", exit_code=1)))
    ended = warmcell("judge", *task)
    assert (ended.status, ended.stdout) == (1, "")
    assert "line 1: no" in ended.stderr and "does not compile" in ended.stderr


def test_json(process: Scripted, warmcell: Command, task: list[str]) -> None:
    process.answer("1\n", "wrong\n")
    ended = warmcell("judge", *task, "--jobs", "1", "--json")
    plain: dict[str, Any] = json.loads(ended.stdout)
    assert (plain["status"], plain["accepted"], plain["total"], plain["language"]) == ("wrong_answer", 1, 2, "python")
    assert [(case["name"], case["status"], case["result"]["stdout"]) for case in plain["cases"]] == [
        ("1", "accepted", "1\n"),
        ("2", "wrong_answer", "wrong\n"),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--timeout", "x"], "--timeout"),
        (["--memory", "0"], "--memory"),
        (["--jobs", "0"], "--jobs"),
        (["--checker", "fuzzy"], "--checker"),
        (["--checker", "exact", "--tolerance", "1"], "--tolerance"),
        (["--tolerance", "x"], "--tolerance"),
        (["--language", "klingon"], "unknown language"),
        (["--cases", "/nonexistent"], "no such file"),
    ],
)
def test_wrong_usage(process: Scripted, warmcell: Command, task: list[str], options: list[str], said: str) -> None:
    ended = warmcell("judge", *task, *options)
    assert ended.status == 2
    assert said in ended.stderr
    assert process.fake.requests == []


def test_hints_name_no_option_of_other_commands(
    process: Scripted, warmcell: Command, task: list[str], tmp_path: Path
) -> None:
    (tmp_path / "solution").write_text("")
    (tmp_path / "empty.wat").write_text("(module)")
    for file, options in (("solution", ""), ("empty.wat", "--image x"), ("empty.wat", "--gpu")):
        ended = warmcell("judge", str(tmp_path / file), *task[1:], *options.split())
        assert ended.status == 2 and "hint:" in ended.stderr
        hint = ended.stderr.partition("hint:")[2]
        assert "--backend" not in hint and "warmcell run" not in hint, hint


@pytest.mark.needs("user namespaces")
def test_the_real_thing(task: list[str]) -> None:
    ended = real_warmcell("judge", *task, "--json")
    plain = json.loads(ended.stdout)
    assert (ended.returncode, ended.stderr, plain["status"]) == (0, b"", "accepted")
    assert plain["version"].startswith("Python 3")
    assert all(case["memory_bytes"] > 0 for case in plain["cases"])


def test_a_webassembly_module_is_judged_by_its_backend(tmp_path: Path) -> None:
    require(find_spec("wasmtime"), "wasmtime is not installed")
    (tmp_path / "empty.wat").write_text('(module (memory (export "memory") 1) (func (export "_start")))')
    (tmp_path / "cases.jsonl").write_text('{"expected": ""}\n{"expected": "x"}\n')
    ended = real_warmcell("judge", str(tmp_path / "empty.wat"), "--cases", str(tmp_path / "cases.jsonl"))
    assert ended.returncode == 1
    assert ended.stdout.endswith(b"1 of 2 accepted\n"), ended


def test_lines_in_place_of_the_table(process: Scripted, warmcell: Command, task: list[str]) -> None:
    process.answer("1\n", "wrong")
    ended = warmcell("judge", *task, "--jobs", "1", "--format", "jsonl")
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(row["name"], row["status"]) for row in rows] == [("1", "accepted"), ("2", "wrong_answer")]


def test_lines_in_a_file(process: Scripted, warmcell: Command, task: list[str], tmp_path: Path) -> None:
    process.answer("1\n", "2\n")
    out = tmp_path / "verdicts.csv"
    ended = warmcell("judge", *task, "--jobs", "1", "--out", str(out))
    assert ended.stdout.endswith("2 of 2 accepted\n")
    assert out.read_text().splitlines()[0].startswith("name,status,time") and len(out.read_text().splitlines()) == 3


def test_a_file_that_cannot_be_written_is_noticed_before_anything_runs(
    process: Scripted, warmcell: Command, task: list[str], tmp_path: Path
) -> None:
    ended = warmcell("judge", *task, "--out", str(tmp_path / "missing" / "x.csv"))
    assert ended.status == 2 and "--out" in ended.stderr
