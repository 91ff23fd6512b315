"""FakeBackend implements the contract of a backend and answers from a script."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from warmcell import (
    BackendUnavailable,
    BuildFailed,
    ExecRequest,
    ExecResult,
    ExecutionFailed,
    ExecutionTimeout,
    FakeBackend,
    InvalidRequest,
    Language,
    MemoryExceeded,
    SandboxBackend,
    Usage,
)
from warmcell.backends.fake import Answer, FakeDelay, FakeGuest, FakeMemoryExceeded, FakeTimeout
from warmcell.backends.fake.script import FakeOutcome, resolve_reply
from warmcell.core.types import MIB, EffectiveLimits, Enforced

FAKE = Enforced(isolation_class="fake")


def request(code: str = "x", language: str = "python", timeout: float = 5, **more: Any) -> ExecRequest:
    return ExecRequest(Language(language), code, timeout, **more)


def test_it_is_a_backend_and_claims_nothing() -> None:
    backend = FakeBackend()
    assert isinstance(backend, SandboxBackend)
    capabilities = backend.capabilities()
    assert capabilities.isolation_class == "fake"
    assert not any(getattr(capabilities.enforced_limits, name) for name in capabilities.enforced_limits.__slots__)


async def test_without_a_script_everything_succeeds() -> None:
    assert (await FakeBackend().execute(request())).ok


async def test_replies_come_in_order_and_requests_are_recorded() -> None:
    backend = FakeBackend(["one", ExecResult(exit_code=3)])
    first, second = request("a"), request("b")
    assert (await backend.execute(first)).stdout == "one"
    assert (await backend.execute(second)).exit_code == 3
    assert backend.requests == [first, second]


async def test_an_exhausted_script_is_an_error() -> None:
    backend = FakeBackend(["one"])
    await backend.execute(request())
    with pytest.raises(ExecutionFailed, match="request 2"):
        await backend.execute(request())


async def test_a_callable_answers_each_request() -> None:
    backend = FakeBackend(lambda asked: f"{asked.language}:{asked.code}")
    assert (await backend.execute(request("hi", "rust"))).stdout == "rust:hi"


async def test_rules_win_over_the_queue() -> None:
    backend = FakeBackend(["queued"]).when("ruled", language="python", code=r"import\s+os")
    assert (await backend.execute(request("import  os"))).stdout == "ruled"
    assert (await backend.execute(request("import os", "command"))).stdout == "queued"


async def test_rules_match_bytes_too() -> None:
    backend = FakeBackend().when("module", language="wasm", code="asm")
    assert (await backend.execute(ExecRequest(Language.WASM, b"\0asm\xff", 1))).stdout == "module"


async def test_a_timeout_carries_the_partial_output() -> None:
    with pytest.raises(ExecutionTimeout) as caught:
        await FakeBackend([FakeTimeout(stdout="so far")]).execute(request(timeout=2))
    assert caught.value.timeout == 2
    assert caught.value.result is not None
    assert caught.value.result.stdout == "so far"


async def test_memory_uses_the_requests_limit() -> None:
    with pytest.raises(MemoryExceeded) as caught:
        await FakeBackend([FakeMemoryExceeded(stdout="x")]).execute(request(memory_limit_mb=64))
    assert caught.value.limit_mb == 64


async def test_a_delay_past_the_deadline_is_a_timeout() -> None:
    with pytest.raises(ExecutionTimeout):
        await FakeBackend([FakeDelay(60, "late")]).execute(request(timeout=0.01))
    with pytest.raises(ExecutionTimeout):
        await FakeBackend(["late"], latency=60).execute(request(timeout=0.01))
    assert (await FakeBackend([FakeDelay(0.01, "soon")]).execute(request())).stdout == "soon"


async def test_any_exception_can_be_simulated() -> None:
    with pytest.raises(RuntimeError, match="boom"):
        await FakeBackend([RuntimeError("boom")]).execute(request())


async def test_cancellation_ends_a_slow_reply() -> None:
    task = asyncio.create_task(FakeBackend([FakeDelay(60)]).execute(request(timeout=100)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_languages_it_was_not_given_are_refused() -> None:
    backend = FakeBackend(languages=["python"])
    with pytest.raises(InvalidRequest) as caught:
        await backend.execute(request(language="rust"))
    assert caught.value.field == "language"


async def test_closing_twice_is_fine_and_running_afterwards_is_not() -> None:
    backend = FakeBackend()
    await backend.aclose()
    await backend.aclose()
    with pytest.raises(BackendUnavailable):
        await backend.execute(request())


def test_the_blocking_way_needs_no_loop() -> None:
    backend = FakeBackend(["one", FakeTimeout()])
    assert backend.execute_blocking(request()).stdout == "one"
    with pytest.raises(ExecutionTimeout):
        backend.execute_blocking(request())


async def test_concurrent_requests_get_the_replies_in_the_order_of_their_calls() -> None:
    backend = FakeBackend([FakeDelay(0.05, "one"), "two", "three"])
    results = await asyncio.gather(*(backend.execute(request(str(n))) for n in range(3)))
    assert [result.stdout for result in results] == ["one", "two", "three"]


async def test_a_scripted_result_is_returned_unchanged() -> None:
    written = ExecResult(stdout="x", exit_code=3, duration=9.0, queued=0.25)
    assert await FakeBackend([written]).execute(request()) == written


GUEST = FakeGuest(stdout="so far", stderr=b"\xff", exit_code=3, seconds=2.0, cpu_seconds=1.0, memory_mb=100)
FACTS = {"stdout": "so far", "stdout_bytes": b"so far", "stderr": "\ufffd", "stderr_bytes": b"\xff", "enforced": FAKE}


def result_after(
    seconds: float, cpu: float, memory_mb: int, exit_code: int = 137, signal: int | None = 9
) -> ExecResult:
    usage = Usage(cpu, seconds, memory_mb * MIB)
    return ExecResult(**FACTS, exit_code=exit_code, signal=signal, duration=seconds, usage=usage)  # type: ignore[arg-type]


#: A guest under limits: (timeout, limits, delay, error, result).
GUESTS: dict[str, tuple[float, EffectiveLimits, float, tuple[Any, ...], ExecResult]] = {
    "no limit is met": (5, EffectiveLimits(), 2.0, (), result_after(2.0, 1.0, 100, 3, None)),
    "time": (1, EffectiveLimits(), 1.0, (ExecutionTimeout, 1, "wall"), result_after(1.0, 1.0, 100)),
    "time, exactly": (2, EffectiveLimits(), 2.0, (ExecutionTimeout, 2, "wall"), result_after(2.0, 1.0, 100)),
    "cpu": (5, EffectiveLimits(cpu_seconds=0.5), 0.5, (ExecutionTimeout, 0.5, "cpu"), result_after(0.5, 0.5, 100)),
    "cpu, exactly": (5, EffectiveLimits(cpu_seconds=1.0), 2.0, (), result_after(2.0, 1.0, 100, 3, None)),
    "time before cpu": (
        0.2,
        EffectiveLimits(cpu_seconds=0.5),
        0.2,
        (ExecutionTimeout, 0.2, "wall"),
        result_after(0.2, 0.2, 100),
    ),
    "memory": (5, EffectiveLimits(memory_mb=64), 0.0, (MemoryExceeded, 64), result_after(0.0, 0.0, 64)),
    "memory, exactly": (5, EffectiveLimits(memory_mb=100), 2.0, (), result_after(2.0, 1.0, 100, 3, None)),
    "memory before time": (1, EffectiveLimits(memory_mb=64), 0.0, (MemoryExceeded, 64), result_after(0.0, 0.0, 64)),
}


@pytest.mark.parametrize("case", list(GUESTS))
def test_a_guest_ends_by_the_limit_that_it_meets_first(case: str) -> None:
    timeout, limits, after, error, expected = GUESTS[case]
    end = resolve_reply(GUEST, request(timeout=timeout), limits)
    assert (end.delay, end.is_scripted) == (after, bool(error))
    if not error:
        assert end.verdict == expected
        return
    assert isinstance(end.verdict, ExecutionTimeout | MemoryExceeded)
    said = (end.verdict.timeout, end.verdict.clock) if isinstance(end.verdict, ExecutionTimeout) else ()
    assert (type(end.verdict), *(said or (end.verdict.limit_mb,))) == error  # type: ignore[union-attr]
    assert end.verdict.result == expected


CUT = "ab"
#: Outputs capped at two bytes.
CAPPED: dict[str, tuple[Answer, ExecResult]] = {
    "text": ("abcdef", ExecResult(CUT, stdout_bytes=b"ab", stdout_truncated=True, enforced=FAKE)),
    "a result": (
        ExecResult(stderr="abcdef", exit_code=3),
        ExecResult(stderr=CUT, stderr_bytes=b"ab", exit_code=3, stderr_truncated=True),
    ),
    "just enough": (ExecResult(stdout="ab"), ExecResult(stdout="ab")),
}


@pytest.mark.parametrize("case", list(CAPPED))
def test_output_is_capped(case: str) -> None:
    answer, expected = CAPPED[case]
    assert resolve_reply(answer, request(), EffectiveLimits(output_bytes=2)).verdict == expected


def test_an_invalid_reply_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="cannot answer with int"):
        resolve_reply(3, request(), EffectiveLimits())  # type: ignore[arg-type]


def test_a_delay_is_added() -> None:
    def late(asked: ExecRequest) -> Answer:
        return FakeDelay(1, FakeDelay(2, lambda other: f"{asked.code} {other.code}"))

    expected = ExecResult("x x", duration=3.5, usage=Usage(0.0, 3.5, 0), enforced=FAKE)
    assert resolve_reply(late, request(), EffectiveLimits(), 0.5) == FakeOutcome(3.5, expected, is_scripted=False)


def test_a_scripted_build_failure_is_raised_and_runs_take_their_own_replies() -> None:
    refused = BuildFailed(ExecResult(stderr="no", exit_code=1))
    backend = FakeBackend([refused, "one", "two"]).when(refused, code="nonsense")
    for code in ("nonsense", "nonsense", "first"):
        with pytest.raises(BuildFailed) as caught:
            backend.build_blocking(ExecRequest("python", code, 5))
        assert caught.value is refused
    with backend.build_blocking(ExecRequest("python", "fine", 5)) as program:
        assert [program.run_blocking("a").stdout, program.run_blocking("b", ["x"], 2).stdout] == ["one", "two"]
    asked = backend.requests
    assert [(each.stdin, each.args, each.timeout) for each in asked] == [("a", (), 5), ("b", ("x",), 2)]
