"""What verl's trainers score with, unmodified, against a server of ours: the same behaviour that verl's own tests of it
want of a real service. Its package is loaded by itself, since `import verl` needs torch. Run by scripts/test-clients.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.metadata import files
from typing import Any

URL = os.environ["SANDBOX_FUSION_ENDPOINT"] + "/run_code"
ALL_LATE = int(os.environ.get("ALL_LATE", "100"))


def _loaded() -> Any:
    [found] = [file for file in files("verl") or () if str(file).endswith("reward_score/sandbox_fusion/__init__.py")]
    path = str(found.locate())
    spec = importlib.util.spec_from_file_location("fusion", path, submodule_search_locations=[os.path.dirname(path)])
    assert spec is not None and spec.loader is not None
    module = sys.modules["fusion"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fusion = _loaded()


def scored(code: str, inputs: list[Any], outputs: list[str], **more: Any) -> tuple[list[Any], list[str]]:
    names = {key: more.pop(key) for key in ("fn_name",) if key in more}
    results, about = fusion.check_correctness(URL, {"inputs": inputs, "outputs": outputs, **names}, code, **more)
    return results, [item["status"] for item in about]


def test_right_and_wrong_answers() -> None:
    code = "import sys\nprint('output' + sys.stdin.read()[-1])"
    assert scored(code, ["input1", "input2"], ["output1\n", "output2"]) == ([True, True], ["success"] * 2)
    assert scored(code, ["input1"], ["output2"]) == ([False], ["wrong_answer"])


def test_what_does_not_compile_fails_every_case() -> None:
    results, said = scored("a=b", ["1", "2"], ["1", "2"], language="cpp", timeout=30)
    assert (results, said) == ([-4, -4], ["compile_error"] * 2)


def test_what_raises() -> None:
    assert scored("raise ValueError('no')", ["1"], ["1"]) == ([-2], ["runtime_error"])


def test_what_takes_too_long() -> None:
    assert scored("import time\ntime.sleep(60)", ["1"], ["1"], timeout=2) == ([-3], ["timeout"])


def test_input_that_is_empty_or_none() -> None:
    code = "import sys, select\nselect.select([sys.stdin], [], [], 5)\nprint('<' + sys.stdin.readline().strip() + '>')"
    assert scored(code, [None, "", "hi"], ["<>", "<>", "<hi>"], timeout=10)[0] == [True] * 3


def test_a_function_by_its_name() -> None:
    code = "class Solution:\n    def twice(self, numbers: List[int], times: int) -> List[int]:\n"
    code += (
        "        counted = Counter(numbers)\n        return [number for number in counted if counted[number] == times]"
    )
    results, _ = scored(code, ["[1, 3, 1, 7]\n2", "[1]\n9"], ["[1]", "[]"], fn_name="twice", timeout=10)
    assert results == [True, True]


def test_a_score_is_the_share_of_cases() -> None:
    cases = {"inputs": ["1", "2"], "outputs": ["1", "other"]}
    score, about = fusion.compute_score(URL, None, 1024, "```python\nprint(input())\n```", cases, continuous=True)
    assert (float(score), len(about)) == (0.5, 2)


def test_a_hundred_at_once_of_every_kind() -> None:
    code = "import sys, time\nword, number = sys.stdin.read().split()\n"
    code += "time.sleep(60 if word == 'late' else 0)\nprint(number)"
    kinds = {number: -3 for number in (5, 30, 60, 90)} | {number: False for number in (10, 25, 50)}
    inputs = [f"{'late' if kinds.get(number) == -3 else 'now'} {number}" for number in range(100)]
    outputs = ["other" if kinds.get(number) is False else str(number) for number in range(100)]
    results, _ = scored(code, inputs, outputs, timeout=15)
    assert results == [kinds.get(number, True) for number in range(100)]


def test_many_at_once_that_never_end() -> None:
    """Nobody's time is counted while he waits, and nobody who waits is told that it was his program."""
    results, _ = scored("while True: pass", ["1"] * ALL_LATE, ["1"] * ALL_LATE, timeout=10)
    assert results == [-3] * ALL_LATE
