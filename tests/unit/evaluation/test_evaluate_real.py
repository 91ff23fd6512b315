"""A sample of each format, judged in real cages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warmcell import evaluate

pytestmark = pytest.mark.needs("user namespaces")

CALLS = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]
TASKS = [
    {
        "task_id": "humaneval",
        "prompt": "def add(a, b):\n    ",
        "entry_point": "add",
        "test": "def check(c):\n    assert c(1, 2) == 3",
    },
    {"task_id": "mbpp", "test_list": ["assert twice(2) == 4"]},
    {"question_id": "stdin", "public_test_cases": [{"input": "1 2", "output": "3.0", "testtype": "stdin"}]},
    {"question_id": "call", "public_test_cases": CALLS, "metadata": {"func_name": "go"}},
    {"problem_id": "apps", "input_output": {"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "add"}},
    {"id": "plain", "language": "command", "cases": [{"stdin": "a", "expected": "a"}, {"stdin": "b", "expected": "b"}]},
]
SAMPLES = [
    ("humaneval", "completion", "return a + b", "accepted"),
    ("humaneval", "completion", "return a - b", "runtime_error"),
    ("humaneval", "completion", "import os; os._exit(0)", "wrong_answer"),
    ("humaneval", "completion", "import sys; sys.exit(0)", "wrong_answer"),
    ("humaneval", "completion", "return (", "build_error"),
    ("mbpp", "solution", "def twice(x): return 2 * x", "accepted"),
    ("stdin", "code", "print(sum(map(int, input().split())))", "accepted"),
    (
        "call",
        "code",
        "class Solution:\n    def go(self, a: List[int], n: int):\n        print('x')\n        return [x + n for x in a]",
        "accepted",
    ),
    ("apps", "code", "def add(a, b): return a + b", "accepted"),
    ("plain", "code", "cat", "accepted"),
    ("plain", "code", "echo a", "wrong_answer"),
]


@pytest.mark.parametrize("processes", [1, 2])
def test_each_format(tmp_path: Path, processes: int) -> None:
    out = tmp_path / "verdicts.jsonl"
    samples: list[dict[str, Any]] = [{"task_id": name, field: text} for name, field, text, _ in SAMPLES]
    summary = evaluate(TASKS, samples, out=out, processes=processes)
    found = {(row["task_id"], row["sample"]): row for row in map(json.loads, out.read_text().splitlines())}
    seen: dict[str, int] = {}
    for name, _, _, status in SAMPLES:
        number = seen[name] = seen.get(name, -1) + 1
        assert found[name, number]["status"] == status, found[name, number]
    assert found["plain", 1]["passed"] == 1 and summary.tasks == len(TASKS)
