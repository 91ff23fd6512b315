"""What verl's trainers score with, unmodified, against a server of ours: the fifteen cases that verl's own tests of it
have, in our words since no package carries them, and some more. Where verl's own stands in for the service, ours asks it.
The package is loaded by itself, since `import verl` needs torch. Run by scripts/test-clients.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import files
from typing import Any

import pytest

URL = os.environ["SANDBOX_FUSION_ENDPOINT"] + "/run_code"
ALL_LATE = int(os.environ.get("ALL_LATE", "100"))
ECHO = "import sys\nprint('output' + sys.stdin.read()[-1])"
MOST_AT_ONCE, PROCESSES, CASES_EACH = 5, 4, 3


def _load() -> Any:
    [found] = [file for file in files("verl") or () if str(file).endswith("reward_score/sandbox_fusion/__init__.py")]
    path = str(found.locate())
    spec = importlib.util.spec_from_file_location("fusion", path, submodule_search_locations=[os.path.dirname(path)])
    assert spec is not None and spec.loader is not None
    module = sys.modules["fusion"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fusion = _load()


def check(code: str, inputs: list[Any], outputs: list[Any], **more: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    names = {key: more.pop(key) for key in ("fn_name", "assert_case") if key in more}
    results, about = fusion.check_correctness(URL, {"inputs": inputs, "outputs": outputs, **names}, code, **more)
    return results, about


def score(code: str, inputs: list[Any], outputs: list[Any], **more: Any) -> tuple[list[Any], list[str]]:
    results, about = check(code, inputs, outputs, **more)
    return results, [item["status"] for item in about]


def test_right_answers() -> None:
    results, about = check(ECHO, ["input1", "input2"], ["output1\n", "output2"])
    assert results == [True, True]
    assert [(item["status"], item["stdout"]) for item in about] == [("success", "output1\n"), ("success", "output2\n")]


def test_wrong_answers() -> None:
    results, about = check("print('other')", ["1", "2"], ["1\n", "2\n"])
    assert results == [False, False]
    assert [(item["status"], item["stdout"]) for item in about] == [("wrong_answer", "other\n")] * 2


def test_what_does_not_compile_fails_every_case() -> None:
    results, said = score("a=b", ["1", "2"], ["1", "2"], language="cpp", timeout=30)
    assert (results, said) == ([-4, -4], ["compile_error"] * 2)


def test_what_raises() -> None:
    code = "import sys\nprint('soon', file=sys.stderr)\nraise ValueError('no')"
    results, [about] = check(code, ["1"], ["1"])
    assert (results, about["status"], about["exit_code"]) == ([-2], "runtime_error", 1)
    assert "soon" in about["stderr"] and "ValueError: no" in about["stderr"]


def test_what_takes_too_long() -> None:
    assert score("import time\ntime.sleep(60)", ["1"], ["1"], timeout=2) == ([-3], ["timeout"])


def test_a_hundred_at_once_of_every_kind() -> None:
    code = "import sys, time\nword, number = sys.stdin.read().split()\n"
    code += "time.sleep(60 if word == 'late' else 0)\nprint(number)"
    kinds = {number: -3 for number in (5, 30, 60, 90)} | {number: False for number in (10, 25, 50)}
    inputs = [f"{'late' if kinds.get(number) == -3 else 'now'} {number}" for number in range(100)]
    outputs = ["other" if kinds.get(number) is False else str(number) for number in range(100)]
    results, about = check(code, inputs, outputs, timeout=15)
    assert results == [kinds.get(number, True) for number in range(100)]
    assert [about[number]["status"] for number in (0, 10, 5)] == ["success", "wrong_answer", "timeout"]
    assert (about[10]["stdout"], about[10]["expected_output"]) == ("10\n", "other")


def test_answers_come_in_the_order_of_their_cases() -> None:
    code = "import time\nnumber = int(input())\ntime.sleep(0.3 * (3 - number))\nprint(number)"
    results, about = check(code, ["1", "2", "3"], ["1", "2", "3"])
    assert results == [True] * 3 and [item["case_index"] for item in about] == [0, 1, 2]
    assert [item["stdout"] for item in about] == ["1\n", "2\n", "3\n"]


def test_one_that_the_service_could_not_serve_is_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = sys.modules["fusion.utils"]
    asked, told = utils.call_sandbox_api, "API Call Failed: Gateway Timeout (504) on attempt 3/3"
    monkeypatch.setattr(
        utils, "call_sandbox_api", lambda **more: (None, told) if more["stdin"] == "2" else asked(**more)
    )
    results, about = check("print(input())", ["1", "2", "3"], ["1", "2", "3"])
    assert results == [True, -1, True]
    assert (about[1]["status"], about[1]["api_request_error"]) == ("api_error", told)


def _measure_share(semaphore: Any, running: Any, most: Any, lock: Any) -> list[Any]:
    """In a process of its own: what verl asks the service is counted while it is under way."""
    utils = sys.modules["fusion.utils"]
    asked = utils.call_sandbox_api

    def count(**more: Any) -> Any:
        with lock:
            running.value += 1
            most.value = max(most.value, running.value)
        try:
            return asked(**more)
        finally:
            with lock:
                running.value -= 1

    utils.call_sandbox_api = count
    inputs = [str(number) for number in range(CASES_EACH)]
    code = "import time\ntime.sleep(0.5)\nprint(input())"
    return check(code, inputs, inputs, timeout=20, concurrent_semaphore=semaphore)[0]


def test_one_semaphore_bounds_what_several_processes_ask() -> None:
    with multiprocessing.Manager() as manager, ProcessPoolExecutor(PROCESSES) as pool:
        running, most = manager.Value("i", 0), manager.Value("i", 0)
        shared = (manager.Semaphore(MOST_AT_ONCE), running, most, manager.Lock())
        began = time.monotonic()
        shares = [pool.submit(_measure_share, *shared) for _ in range(PROCESSES)]
        assert [share.result() for share in shares] == [[True] * CASES_EACH] * PROCESSES
        assert 0 < most.value <= MOST_AT_ONCE
        assert time.monotonic() - began >= PROCESSES * CASES_EACH * 0.5 / MOST_AT_ONCE


@pytest.mark.parametrize("cases", [None, {}, {"inputs": ["1"]}])
def test_cases_of_a_wrong_form(cases: Any) -> None:
    results, about = fusion.check_correctness(URL, cases, ECHO)
    assert (results, about[0]["error"]) == ([-1], "Invalid input/output data")


def test_more_answers_than_cases() -> None:
    results, [about] = check(ECHO, ["1"], ["1", "2"])
    assert (results, about["error"]) == ([-1], "Input/output count mismatch")


def test_many_at_once_that_never_end() -> None:
    """Time in the queue does not count, and a run that waits too long is not reported as the program's fault."""
    code = "rows, columns = map(int, input().split())\ntable = [[0] * (columns + 1) for _ in range(rows + 1)]\n"
    code += "while True:\n    for row in table:\n        row[0] += 1"
    results, about = check(code, ["324 9000"] * ALL_LATE, ["1"] * ALL_LATE, timeout=10)
    assert results == [-3] * ALL_LATE and {item["status"] for item in about} == {"timeout"}


def test_a_method_by_its_name() -> None:
    code = "class Solution:\n    def twice(self, numbers: List[int], times: int) -> List[int]:\n"
    code += (
        "        counted = Counter(numbers)\n        return [number for number in counted if counted[number] == times]"
    )
    results, about = check(code, ["[1, 3, 1, 7]\n2", "[1]\n9"], ["[1]", "[]"], fn_name="twice", timeout=10)
    assert results == [True, True] and "error" not in about[0]


@pytest.mark.parametrize("waits", [True, False])
def test_input_that_is_empty_or_none(waits: bool) -> None:
    code = "import sys, select\n" + "select.select([sys.stdin], [], [], 5)\n" * waits
    code += "print('<' + sys.stdin.readline().strip() + '>')"
    assert score(code, [None, "", "hi"], ["<>", "<>", "<hi>"], timeout=10)[0] == [True] * 3


def test_assertions_instead_of_answers() -> None:
    code = "def twice(numbers):\n    return [2 * number for number in numbers]"
    asserted = [f"assert twice([1, 2]) == {right}" for right in ("[2, 4]", "[4, 2][::-1]", "[1, 2]")]
    results, about = check(code, [""] * 3, [None] * 3, assert_case=asserted, timeout=10)
    assert results == [True, True, -2]
    assert [item["status"] for item in about] == ["success", "success", "runtime_error"]
    assert {item["expected_output"] for item in about} == {None}


@pytest.mark.parametrize(("value", "answer"), [("''", ""), ("None", "null"), ("False", "false")])
def test_a_function_that_returns_nothing_much(value: str, answer: str) -> None:
    results, [about] = check(f"def solve(): return {value}", [""], [answer], fn_name="solve")
    assert (results, about["exit_code"], about["stderr"]) == ([True], 0, "")


def test_a_score_is_the_share_of_cases() -> None:
    cases = {"inputs": ["1", "2"], "outputs": ["1", "other"]}
    score, about = fusion.compute_score(URL, None, 1024, "```python\nprint(input())\n```", cases, continuous=True)
    assert (float(score), len(about)) == (0.5, 2)
