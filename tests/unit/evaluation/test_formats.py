"""Each format is recognised by its fields; a record that lacks one is refused by name."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from typing import Any

import pytest

from warmcell import InvalidRequest
from warmcell.evaluation.formats import read_task, unpack
from warmcell.evaluation.tasks import Sample

HUMANEVAL = {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "entry_point": "f", "test": "def check(f): pass"}
MBPP = {"task_id": 11, "text": "Write ...", "test_list": ["assert f(1) == 2"], "test_setup_code": "import math"}
STDIN = [{"input": "1 2", "output": "3", "testtype": "stdin"}]
CALL = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]
PACKED = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(STDIN)))).decode()
LIVECODEBENCH = {"question_id": "abc", "public_test_cases": json.dumps(STDIN), "private_test_cases": PACKED}
APPS = {"problem_id": 5, "input_output": json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})}
APPS_CALL = {"id": 6, "input_output": json.dumps({"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "add"})}
SWEBENCH = {
    "instance_id": "a__b-1",
    "FAIL_TO_PASS": '["t.py::one"]',
    "PASS_TO_PASS": ["t.py::two"],
    "test_patch": "diff",
    "image": "repository:1",
    "test_cmd": "pytest -rA",
}
PLAIN = {"id": "p", "language": "cpp", "cases": [{"stdin": "1", "expected": "2"}], "timeout": 3, "memory_mb": 64}


@pytest.mark.parametrize(
    ("record", "task_id", "language", "stdins"),
    [
        (HUMANEVAL, "HumanEval/0", "python", [""]),
        (MBPP, "11", "python", [""]),
        (LIVECODEBENCH, "abc", "python", ["1 2", "1 2"]),
        (APPS, "5", "python", ["1\n"]),
        (APPS_CALL, "6", "python", ["[1, 2]"]),
        (SWEBENCH, "a__b-1", "command", [""]),
        (PLAIN, "p", "cpp", ["1"]),
    ],
)
def test_recognised_by_its_fields(record: dict[str, Any], task_id: str, language: str, stdins: list[str]) -> None:
    task = read_task(record, "tasks.jsonl:1")
    assert (task.id, task.language, [case.stdin for case in task.cases]) == (task_id, language, stdins)


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../../x": "1"}},
        {"files": {"/etc/x": "1"}},
        {"before": "\ud800"},
        {"id": "\ud800"},
    ],
)
def test_a_task_of_which_no_program_can_be_made_is_refused(change: dict[str, Any]) -> None:
    """With its place, before any sample is judged: the fault is not a sample's."""
    with pytest.raises(InvalidRequest, match=r"tasks.jsonl:1"):
        read_task(PLAIN | {"language": "python"} | change, "tasks.jsonl:1")


def test_a_completion_follows_the_prompt_and_a_solution_does_not() -> None:
    task = read_task(HUMANEVAL, "here")
    assert str(task.make_request(Sample("    return 1", is_continuation=True)).code).startswith(
        "def f(x):\n    return 1"
    )
    assert str(task.make_request(Sample("def f(x): return 1")).code).startswith("def f(x): return 1")


def test_a_call_gets_its_arguments_as_json() -> None:
    record = {"question_id": 1, "public_test_cases": CALL, "metadata": '{"func_name": "go"}'}
    task = read_task(record, "here")
    assert (task.cases[0].stdin, task.cases[0].expected) == ("[[1, 2], 3]", "[4, 5]")
    assert "Solution().go(" in task.after


def test_a_patch_is_a_file_of_the_run() -> None:
    request = read_task(SWEBENCH, "here").make_request(Sample("+added"))
    assert request.files["model.patch"] == b"+added" and "+added" not in str(request.code)
    assert request.files["tests.sh"] == b"pytest -rA"


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"prompt": "x"}, "no field 'task_id'"),
        ({"task_id": "x", "prompt": "x"}, "x): unknown kind of task"),
        ({"task_id": "x", "entry_point": "f", "prompt": ""}, "humaneval): no field 'test'"),
        ({**HUMANEVAL, "entry_point": "f(); evil"}, "is not a Python name"),
        ({"task_id": "x", "test_list": [1]}, "test_list must be a list of texts"),
        ({"question_id": "x", "public_test_cases": "[1]"}, "livecodebench): a test case is not an object"),
        ({"question_id": "x", "public_test_cases": CALL}, "metadata.func_name"),
        ({"question_id": "x", "public_test_cases": "AAAA"}, "neither JSON nor packed JSON"),
        ({"id": 1, "input_output": '{"inputs": []}'}, "apps): input_output needs inputs and outputs"),
        ({"id": 1, "input_output": "{"}, "input_output is not JSON"),
        ({**SWEBENCH, "image": None}, "swebench): no field 'image' or"),
        ({"id": 1, "cases": [{"stdin": ""}]}, "plain): no field 'expected'"),
        ({"id": 1, "cases": []}, "cases: is empty"),
        ({"id": 1, "cases": [{"expected": ""}], "timeout": -1}, "timeout"),
        ({"id": 1, "cases": [{"expected": ""}], "checker": "vague"}, "checker"),
    ],
)
def test_a_wrong_record_is_named_with_its_field(record: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_task(record, "tasks.jsonl:7")
    assert "tasks.jsonl:7" in caught.value.message and said in caught.value.message


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.putenv, ("WARMCELL_CANARY", "1")


def test_a_pickle_is_never_loaded() -> None:
    packed = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    with pytest.raises(InvalidRequest, match="must hold one text"):
        read_task({"question_id": 1, "public_test_cases": "[]", "private_test_cases": packed}, "here")
    assert unpack(PACKED, "x") == json.dumps(STDIN)
