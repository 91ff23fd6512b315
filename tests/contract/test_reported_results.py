"""What a backend reports of its runs is true: whose fault it was, which limits held, what it cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.conftest import Run
from tests.contract.programs import Allocate, Burn, Exit, Say, Sleep, Spin

from warmcell import ExecRequest, InvalidRequest, Language, Limits, SandboxError

MIB = 1 << 20

#: What ends so, the error's code, whose fault it was, and whether to try again.
ENDS: dict[str, tuple[Callable[[Run, Any], object], tuple[str, str, bool]]] = {
    "time": (lambda run, on: run(Spin(), on=on, timeout=0.3), ("sandbox.timeout", "guest", False)),
    "cpu": (
        lambda run, on: run(Spin(), on=on, limits=Limits(cpu_seconds=0.3)),
        ("sandbox.timeout", "guest", False),
    ),
    "memory": (
        lambda run, on: run(Allocate(256), Sleep(20), on=on, memory_limit_mb=128),
        ("sandbox.memory_exceeded", "guest", False),
    ),
}


@pytest.mark.parametrize("end", list(ENDS))
def test_what_a_limit_ended_is_the_guests_fault(run: Run, backend: Any, end: str) -> None:
    cause, expected = ENDS[end]
    with pytest.raises(SandboxError) as caught:
        cause(run, backend)
    assert (caught.value.code, caught.value.fault, caught.value.retryable) == expected


def test_a_language_that_it_does_not_have_is_the_callers_fault(backend: Any, run: Run) -> None:
    other = Language.RUST if Language.WASM in backend.capabilities().supported_languages else Language.WASM
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(backend.execute(ExecRequest(other, "(module)", 5)))
    assert (caught.value.field, caught.value.fault, caught.value.retryable) == ("language", "caller", False)
    assert caught.value.hint
    assert run(Say("next")).stdout == "next"


PROMISES = {
    "timeout": "timeout",
    "memory": "memory",
    "network_isolation": "network",
    "filesystem_read_isolation": "filesystem_read",
    "filesystem_write_isolation": "filesystem_write",
    "environment_isolation": "environment",
    "process_limit": "processes",
    "disk_limit": "disk",
    "output_limit": "output",
    "cpu": "cpu",
}


def test_results_name_a_mechanism_for_every_promise_and_for_no_other(backend: Any, run: Run) -> None:
    """With every limit asked for, what `capabilities` promises and what a result says held are the same list."""
    limits = Limits(memory_mb=256, cpu_seconds=10, processes=32, open_files=64, disk_mb=16, output_bytes=MIB)
    enforced, promised = run(Say("x"), limits=limits).enforced, backend.capabilities()
    assert enforced.isolation_class == promised.isolation_class
    assert set(PROMISES) == set(promised.enforced_limits.__slots__)
    held = {promise: getattr(enforced, name) is not None for promise, name in PROMISES.items()}
    assert held == {promise: getattr(promised.enforced_limits, promise) for promise in PROMISES}


def test_a_partial_result_says_what_held_too(run: Run) -> None:
    with pytest.raises(SandboxError) as caught:
        run(Spin(), timeout=0.3)
    assert caught.value.result.enforced == run(Say("x")).enforced  # type: ignore[attr-defined]


def test_what_a_run_cost_is_measured(run: Run) -> None:
    idle, busy = run(Sleep(0.5)), run(Allocate(64), Burn(0.5))
    for result in (idle, busy):
        assert result.usage.wall_time == pytest.approx(result.duration, abs=0.05)
        assert result.duration >= 0.5
    assert busy.usage.peak_memory_bytes >= 64 * MIB > idle.usage.peak_memory_bytes
    assert busy.usage.cpu_time > idle.usage.cpu_time
    assert idle.usage.cpu_time < 0.4


def test_every_result_says_how_long_it_was_queued(run: Run) -> None:
    for steps in ((Say("x"),), (Exit(3),)):
        result = run(*steps)
        assert isinstance(result.queued, float)
        assert 0 <= result.queued < 20


def test_nothing_was_refused_where_nothing_was_tried(run: Run) -> None:
    assert run(Say("x")).denials == []
