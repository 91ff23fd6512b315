"""Which verdict each way to end calls for, by scripted backends."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
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
from warmcell.core import events
from warmcell.judging import doubt
from warmcell.judging.doubt import run_alone

REQUEST = ExecRequest("python", "x", 5)
HOST = ExecutionFailed("a bad moment")
BUSY = ExecutionTimeout(5, ExecResult(usage=Usage(cpu_time=5)))
IDLE = ExecutionTimeout(5, ExecResult(usage=Usage(cpu_time=0.1)))


def test_a_checker_that_must_be_awaited_accepts_nothing() -> None:
    async def refuse(case: Case, result: ExecResult) -> bool:
        return False

    checker: Any = refuse
    (verdict,) = judge(REQUEST, [Case("in", "right")], backend=FakeBackend(["wrong\n"]), checker=checker)
    assert verdict.status == "checker_error" and "coroutine" in str(verdict.error)


def test_what_is_no_request_is_refused_by_name() -> None:
    program: Any = "print(1)"
    with pytest.raises(InvalidRequest, match="request: must be ExecRequest, not str"):
        judge(program, [])


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
    told: dict[int, Verdict] = {}
    verdicts = judge(REQUEST, [Case("", "x")] * 3, backend=backend, on_verdict=told.__setitem__)
    assert [(verdict.status, verdict.result) for verdict in verdicts] == [("build_error", said)] * 3
    assert told == dict(enumerate(verdicts))
    assert len(judge(REQUEST, [Case("", "x")] * 3, backend=backend, stop_early=True)) == 1
    assert backend.requests == []


def answer(request: ExecRequest) -> str | FakeBackend | Any:
    return {"a": "A", "b": "wrong", "c": "C"}[str(request.stdin)]


CASES = [Case("a", "A"), Case("b", "B", timeout=2), Case("c", "C")]


def test_verdicts_are_in_the_order_of_the_cases_and_told_as_they_come() -> None:
    told: dict[int, Verdict] = {}
    backend = FakeBackend(answer)
    verdicts = judge(REQUEST, CASES, backend=backend, concurrency=3, clock="wall", on_verdict=told.__setitem__)
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


def test_processor_time_is_limited_by_default() -> None:
    backend = FakeBackend(["x"])
    judge(REQUEST, [Case("", "x", timeout=2)], backend=backend)
    (asked,) = backend.requests
    assert asked.limits is not None
    assert (asked.limits.cpu_seconds, asked.timeout) == (2, 8)


@pytest.mark.parametrize(("own", "effective"), [(1, 1), (9, 5)])
def test_a_lower_limit_on_processor_time_of_the_request_holds(own: float, effective: float) -> None:
    backend = FakeBackend(["x"])
    judge(ExecRequest("python", "x", 5, limits=Limits(cpu_seconds=own)), [Case("", "x")], backend=backend)
    (asked,) = backend.requests
    assert asked.limits is not None and asked.limits.cpu_seconds == effective


def test_processor_time_over_the_limit_counts_at_the_end_too() -> None:
    """The watcher looks every 20 ms, and the program may have ended in between."""
    late = ExecResult("right\n", usage=Usage(cpu_time=5.01))
    (verdict,) = judge(REQUEST, [Case("", "right")], backend=FakeBackend([late]))
    assert verdict.status == "time_limit" and isinstance(verdict.error, ExecutionTimeout)
    assert judge(REQUEST, [Case("", "right")], backend=FakeBackend([late]), clock="wall")[0].ok


def test_a_case_has_limits_of_its_own() -> None:
    backend = FakeBackend(["x"] * 3)
    request = ExecRequest("python", "x", 5, memory_limit_mb=64)
    judge(request, [Case("", "x"), Case("", "x", memory_mb=32), Case("", "x", memory_mb=128)], backend=backend)
    asked = sorted((one.limits.memory_mb, one.memory_limit_mb) for one in backend.requests if one.limits is not None)
    assert asked == [(32, None), (64, None), (128, None)]


def test_a_peak_that_may_be_over_the_limit_is_measured_again() -> None:
    """It includes pages that may not be the program's own, so it does not decide by itself."""
    high, low = (ExecResult("x", usage=Usage(peak_memory_bytes=size << 20)) for size in (70, 60))
    request = ExecRequest("python", "x", 5, memory_limit_mb=64)
    for script, status, runs in (
        ([low], "accepted", 1),
        ([high, MemoryExceeded(64, high)], "memory_limit", 2),
        ([high, high], "accepted", 2),
    ):
        backend = FakeBackend(script)
        assert judge(request, [Case("", "x")], backend=backend)[0].status == status
        assert len(backend.requests) == runs


def test_a_checker_that_raises_spoils_one_case_only() -> None:
    def check(case: Case, result: ExecResult) -> bool:
        if case.stdin == "b":
            raise KeyError("no such answer")
        return result.stdout == case.expected

    verdicts = judge(REQUEST, CASES, backend=FakeBackend(answer), checker=check)
    assert [verdict.status for verdict in verdicts] == ["accepted", "checker_error", "accepted"]
    failed = verdicts[1].error
    assert failed is not None and failed.fault == "caller" and isinstance(failed.__cause__, KeyError)
    assert "no such answer" in str(failed) and verdicts[1].result is not None


def test_endless_output_is_not_a_matter_of_time() -> None:
    flood = ExecResult("x" * 9, stdout_truncated=True)
    by_stderr = ExecResult(stderr_truncated=True, exit_code=153, signal=25)
    for end in (ExecutionTimeout(5, flood, clock="cpu"), flood, by_stderr):
        assert judge(REQUEST, [Case("", "x")], backend=FakeBackend([end]))[0].status == "output_limit"


@pytest.mark.parametrize(
    ("cpu", "wall", "runs"),
    [(0.004, 5.0, 1), (0.004, 9.0, 2), (0.2, 5.0, 2), (4.9, 5.0, 1)],
    ids=["it slept", "its deadline was moved", "it hardly ran", "it computed"],
)
def test_only_a_case_that_others_may_have_delayed_runs_again(cpu: float, wall: float, runs: int) -> None:
    late = ExecutionTimeout(5, ExecResult(usage=Usage(cpu, wall)))
    backend = FakeBackend([late, late])
    assert judge(ExecRequest("python", "x", 1), [Case("", "x")], backend=backend)[0].status == "time_limit"
    assert len(backend.requests) == runs


def test_cases_in_doubt_run_alone_whoever_judges() -> None:
    """32 threads, each with a judge of its own: two cases that run alone would delay each other."""
    running, most = [0], [0]
    seen: set[str] = set()

    async def run(request: ExecRequest) -> ExecResult:
        if request.code not in seen:
            seen.add(str(request.code))
            raise IDLE
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.01)
        running[0] -= 1
        return ExecResult("x")

    class Slow:
        name = "slow"
        execute = staticmethod(run)

        def capabilities(self) -> Any: ...
        async def aclose(self) -> None: ...

    with ThreadPoolExecutor(8) as threads:
        requests = [ExecRequest("python", str(number), 5) for number in range(16)]
        found = list(threads.map(lambda request: judge(request, [Case("", "x")], backend=Slow()), requests))
    assert [verdict.status for (verdict,) in found] == ["accepted"] * 16
    assert most == [1]


def test_no_case_runs_alone_while_a_checker_works() -> None:
    """A checker may itself judge a case that has to run alone. That waited for the case whose checker it was."""
    was_free: list[bool] = []

    def check(case: Case, result: ExecResult) -> bool:
        was_free.append(doubt._gate.is_idle)
        return True

    backend = FakeBackend([IDLE, "right\n"])
    assert judge(REQUEST, [Case("", "right")], backend=backend, checker=check)[0].ok
    assert was_free == [True] and len(backend.requests) == 2


async def test_tenants_take_turns_with_their_cases_in_doubt() -> None:
    """A judge took the gate for its next case before any other could: a tenant with many kept all others waiting."""
    order, has_begun = list[str](), asyncio.Event()

    async def run_cases(tenant: str, count: int) -> None:
        with events.annotate(tenant=tenant):
            for _ in range(count):
                async with run_alone():
                    order.append(tenant)
                    has_begun.set()
                    await asyncio.sleep(0)

    many = asyncio.ensure_future(run_cases("many", 100))
    await has_begun.wait()
    await run_cases("few", 1)
    await many
    assert order.count("many") == 100 and order.index("few") < 5


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
    [
        ({"checker": "fuzzy"}, "checker"),
        ({"clock": "sun"}, "clock"),
        ({"concurrency": -1}, "concurrency"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": -1, "interactor": REQUEST}, "concurrency"),
    ],
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


class Paired:
    """Builds anything. Its interactors accept the input `right`; a program with the text `gone` finds it closed."""

    closed = 0

    async def build(self, request: ExecRequest) -> Paired:
        return self

    async def aclose(self) -> None:
        self.closed += 1

    async def execute(self, request: ExecRequest, *, stdin: int, listener: object) -> ExecResult:
        if request.code == "gone":
            raise BackendUnavailable("the backend was closed")
        given = request.files.get("input")
        return ExecResult(exit_code=0 if given is None else 42 if given in ("right", b"right") else 43)


def test_with_an_interactor_too_the_list_ends_with_the_first_failure() -> None:
    backend: Any = Paired()
    options: dict[str, Any] = {"backend": backend, "interactor": REQUEST, "concurrency": 2}
    cases = [Case("wrong"), Case("right"), Case("right")]
    verdicts = judge(REQUEST, cases, stop_early=True, **options)
    assert [verdict.status for verdict in verdicts] == ["wrong_answer"]
    with pytest.raises(BackendUnavailable):  # not in a group
        judge(ExecRequest("python", "gone", 5), cases, **options)
    assert backend.closed == 4
