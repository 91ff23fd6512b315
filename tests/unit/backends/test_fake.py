"""FakeBackend keeps the contract of a backend while it answers from a script."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from warmcell import (
    BackendUnavailable,
    ExecRequest,
    ExecResult,
    ExecutionFailed,
    ExecutionTimeout,
    FakeBackend,
    InvalidRequest,
    Language,
    MemoryExceeded,
    SandboxBackend,
)
from warmcell.backends.fake import FakeDelay, FakeMemoryExceeded, FakeTimeout


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


async def test_an_exhausted_script_says_so() -> None:
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
