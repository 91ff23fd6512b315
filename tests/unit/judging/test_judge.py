"""Verdicts by script: what each way to end means for a case, and what never becomes one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from warmcell import (
    BackendUnavailable,
    BuildFailed,
    Case,
    EnforcerFailed,
    ExecRequest,
    ExecResult,
    ExecutionFailed,
    ExecutionTimeout,
    FakeBackend,
    FuelExhausted,
    InvalidRequest,
    Limits,
    MemoryExceeded,
    Usage,
    Verdict,
    ajudge,
    judge,
)

REQUEST = ExecRequest("python", "x", 5)
HOST = ExecutionFailed("a bad moment")
BUSY = ExecutionTimeout(5, ExecResult(usage=Usage(cpu_time=5)))
IDLE = ExecutionTimeout(5, ExecResult(usage=Usage(cpu_time=0.1)))


@pytest.mark.parametrize(
    ("script", "status", "attempts"),
    [
        (["right\n"], "accepted", 1),
        (["wrong\n"], "wrong_answer", 1),
        ([ExecResult("right\n", exit_code=1)], "runtime_error", 1),
        ([ExecResult("right\n", stdout_truncated=True)], "output_limit", 1),
        ([ExecResult("right\n", stdout_truncated=True, exit_code=1)], "output_limit", 1),
        ([ExecResult("right\n", stderr_truncated=True)], "accepted", 1),
        ([MemoryExceeded(64)], "memory_limit", 1),
        ([BUSY], "time_limit", 1),
        ([ExecutionTimeout(5, ExecResult(), clock="cpu")], "time_limit", 1),
        ([FuelExhausted(9)], "time_limit", 1),
        ([IDLE, IDLE], "time_limit", 2),
        ([IDLE, "right\n"], "accepted", 2),
        ([HOST, "right\n"], "accepted", 2),
        ([HOST, HOST], "host_error", 2),
        ([EnforcerFailed("native", "no"), EnforcerFailed("native", "no")], "host_error", 2),
    ],
)
def test_what_an_end_means(script: list[Any], status: str, attempts: int) -> None:
    backend = FakeBackend(script)
    (verdict,) = judge(REQUEST, [Case("in", "right")], backend=backend)
    assert (verdict.status, len(backend.requests), verdict.ok) == (status, attempts, status == "accepted")
    assert {each.stdin for each in backend.requests} == {"in"}


@pytest.mark.parametrize(
    "error", [InvalidRequest("caller"), BackendUnavailable("no compiler")], ids=["the caller's", "for ever"]
)
def test_what_says_nothing_and_will_not_pass_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        judge(REQUEST, [Case("", "x")], backend=FakeBackend([error]))


def test_a_program_that_does_not_build_fails_every_case_without_a_run() -> None:
    said = ExecResult(stderr="main.c:1: error", exit_code=1)
    backend = FakeBackend().when(BuildFailed(said))
    verdicts = judge(REQUEST, [Case("", "x")] * 3, backend=backend)
    assert [(verdict.status, verdict.result) for verdict in verdicts] == [("build_error", said)] * 3
    assert backend.requests == []


def answer(request: ExecRequest) -> str | FakeBackend | Any:
    return {"a": "A", "b": "wrong", "c": "C"}[str(request.stdin)]


CASES = [Case("a", "A"), Case("b", "B", timeout=2), Case("c", "C")]


def test_verdicts_are_in_the_order_of_the_cases_and_told_as_they_come() -> None:
    told: dict[int, Verdict] = {}
    backend = FakeBackend(answer)
    verdicts = judge(REQUEST, CASES, backend=backend, concurrency=3, on_verdict=told.__setitem__)
    assert [verdict.status for verdict in verdicts] == ["accepted", "wrong_answer", "accepted"]
    assert [told[index] for index in range(3)] == verdicts
    assert {str(each.stdin): each.timeout for each in backend.requests} == {"a": 5, "b": 2, "c": 5}


def test_it_stops_early_when_asked() -> None:
    for concurrency in (1, 3):
        verdicts = judge(REQUEST, CASES, backend=FakeBackend(answer), concurrency=concurrency, stop_early=True)
        assert [verdict.status for verdict in verdicts] == ["accepted", "wrong_answer"]
    backend = FakeBackend(answer)
    judge(REQUEST, [CASES[1], *CASES * 30], backend=backend, concurrency=1, stop_early=True)
    assert len(backend.requests) < 10


def test_a_case_that_came_too_late_is_run_again_before_the_first_failure_is_told() -> None:
    script = {"a": [IDLE, "A"], "b": ["wrong"], "c": [IDLE, "C"]}
    backend = FakeBackend(lambda request: script[str(request.stdin)].pop(0))  # type: ignore[attr-defined]
    verdicts = judge(REQUEST, CASES, backend=backend, concurrency=1, stop_early=True)
    assert [verdict.status for verdict in verdicts] == ["accepted", "wrong_answer"]


def test_the_clock_may_be_the_processors() -> None:
    backend = FakeBackend(["x"])
    judge(REQUEST, [Case("", "x", timeout=2)], backend=backend, clock="cpu")
    (asked,) = backend.requests
    assert asked.limits is not None
    assert (asked.limits.cpu_seconds, asked.timeout) == (2, 15)


def test_the_right_answer_never_meets_the_cap_on_output() -> None:
    long = "x" * (3 << 20)
    assert judge(REQUEST, [Case("", long)], backend=FakeBackend([long]))[0].ok
    capped = ExecRequest("python", "x", 5, limits=Limits(output_bytes=100))
    assert judge(capped, [Case("", long)], backend=FakeBackend([long]))[0].status == "output_limit"


def test_a_program_that_was_built_is_taken_and_not_closed() -> None:
    backend = FakeBackend(answer)

    async def both() -> list[str]:
        async with await backend.build(REQUEST) as program:
            first = await ajudge(program, CASES)
            again = await ajudge(program, CASES[:1], checker=lambda case, result: False)
        return [verdict.status for verdict in (*first, *again)]

    assert asyncio.run(both()) == ["accepted", "wrong_answer", "accepted", "wrong_answer"]


def test_a_backend_that_cannot_build_will_do() -> None:
    class Plain:
        name = "plain"

        def capabilities(self) -> Any: ...

        async def execute(self, request: ExecRequest) -> ExecResult:
            return ExecResult(stdout=str(request.stdin).upper())

        async def aclose(self) -> None: ...

    assert [verdict.ok for verdict in judge(REQUEST, CASES, backend=Plain())] == [True, True, True]


@pytest.mark.parametrize(
    ("options", "field"),
    [({"checker": "fuzzy"}, "checker"), ({"clock": "sun"}, "clock"), ({"concurrency": -1}, "concurrency")],
)
def test_what_is_wrong_is_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        judge(REQUEST, CASES, backend=FakeBackend(answer), **options)
    assert caught.value.field == field
    for wrong in ({"stdin": 1}, {"expected": None}, {"timeout": 0}):
        with pytest.raises(InvalidRequest):
            Case(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        judge(REQUEST, ["x"], backend=FakeBackend())  # type: ignore[list-item]


def test_a_verdict_says_what_the_case_cost() -> None:
    result = ExecResult(duration=2.0, usage=Usage(cpu_time=1.0, peak_memory_bytes=3))
    verdict = Verdict("accepted", result)
    assert (verdict.time, verdict.cpu_time, verdict.memory_bytes) == (2.0, 1.0, 3)
    assert (Verdict("host_error").time, Verdict("host_error").memory_bytes) == (0.0, 0)
