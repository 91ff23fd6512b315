"""Limits end a guest with the error that names them, and what it had printed is kept."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.contract.conftest import Kind, Run
from tests.contract.programs import Allocate, Burn, Copy, Flood, Say, Sleep, Spin, Step
from tests.helpers import PATIENCE

from warmcell import ExecutionTimeout, Limits, MemoryExceeded


@pytest.mark.parametrize("endless", [Spin(), Sleep(600), Flood(None)], ids=["computes", "waits", "writes"])
def test_past_its_time_a_guest_is_ended_and_what_it_printed_is_kept(run: Run, endless: Step) -> None:
    started = time.monotonic()
    with pytest.raises(ExecutionTimeout, match=r"timed out after 1 s$") as caught:
        run(Say("so far\n"), Say("and here", stream=2), endless, timeout=1)
    error = caught.value
    assert (error.timeout, error.clock, error.phase) == (1, "wall", "run")
    assert error.result is not None
    assert error.result.stdout.startswith("so far\n")
    assert (error.result.stderr, error.result.exit_code) == ("and here", 137)
    assert time.monotonic() - started < PATIENCE


def test_the_clock_starts_when_the_guest_can_run(fresh: Any, run: Run) -> None:
    """A backend that has run nothing yet has much to prepare; none of it is the guest's time."""
    with pytest.raises(ExecutionTimeout) as caught:
        run(Spin(), on=fresh(), timeout=0.5)
    assert caught.value.result is not None
    assert caught.value.result.duration >= 0.5


def test_the_next_run_after_a_timeout_is_like_any_other(run: Run) -> None:
    with pytest.raises(ExecutionTimeout):
        run(Spin(), timeout=0.3)
    assert run(Say("next")).stdout == "next"


def test_past_its_memory_a_guest_is_ended_and_what_it_printed_is_kept(run: Run) -> None:
    with pytest.raises(MemoryExceeded, match="128 MB") as caught:
        run(Say("so far"), Allocate(256), Sleep(20), memory_limit_mb=128)
    assert caught.value.limit_mb == 128
    assert caught.value.result is not None
    assert caught.value.result.stdout == "so far"
    assert caught.value.result.exit_code != 0


def test_within_its_memory_a_guest_is_left_alone(run: Run) -> None:
    assert run(Allocate(64), Say("done"), memory_limit_mb=256).stdout == "done"


def test_past_its_processor_time_a_guest_is_ended_and_what_it_printed_is_kept(run: Run) -> None:
    with pytest.raises(ExecutionTimeout, match="cpu time") as caught:
        run(Say("so far"), Spin(), timeout=60, limits=Limits(cpu_seconds=0.5))
    error = caught.value
    assert (error.timeout, error.clock) == (0.5, "cpu")
    assert error.result is not None
    assert error.result.stdout == "so far"
    assert error.result.exit_code != 0
    assert error.result.usage.cpu_time >= 0.4


def test_waiting_is_not_processor_time(run: Run) -> None:
    assert run(Sleep(1), Say("done"), limits=Limits(cpu_seconds=0.9)).stdout == "done"


def test_within_its_processor_time_a_guest_is_left_alone(run: Run) -> None:
    assert run(Burn(0.2), Say("done"), limits=Limits(cpu_seconds=20)).stdout == "done"


def test_of_two_clocks_the_first_to_strike_is_named(run: Run) -> None:
    with pytest.raises(ExecutionTimeout) as caught:
        run(Spin(), timeout=0.5, limits=Limits(cpu_seconds=60))
    assert (caught.value.timeout, caught.value.clock) == (0.5, "wall")


CEILINGS = {
    "memory_limit_mb above the ceiling": (Limits(memory_mb=128), {"memory_limit_mb": 1024}),
    "limits above the ceiling": (Limits(memory_mb=128), {"limits": Limits(memory_mb=1024)}),
    "the request says nothing": (Limits(memory_mb=128), {}),
    "memory_limit_mb below the ceiling": (Limits(memory_mb=1024), {"memory_limit_mb": 128}),
    "memory_limit_mb below limits": (None, {"memory_limit_mb": 128, "limits": Limits(memory_mb=1024)}),
    "limits below memory_limit_mb": (None, {"memory_limit_mb": 1024, "limits": Limits(memory_mb=128)}),
}


@pytest.mark.parametrize("case", list(CEILINGS))
def test_of_all_figures_for_memory_the_smallest_holds(fresh: Any, run: Run, case: str) -> None:
    ceiling, asked = CEILINGS[case]
    with pytest.raises(MemoryExceeded) as caught:
        run(Allocate(256), Sleep(20), on=fresh(limits=ceiling), **asked)
    assert caught.value.limit_mb == 128


def test_a_request_may_exceed_the_default_without_a_ceiling(run: Run) -> None:
    assert run(Allocate(600), Say("done"), memory_limit_mb=1024).stdout == "done"


def test_a_ceiling_holds_for_output_and_processor_time_too(fresh: Any, run: Run, kind: Kind) -> None:
    backend = fresh(limits=Limits(output_bytes=4, cpu_seconds=0.5))
    assert run(Copy(), on=backend, stdin="abcdefgh", limits=Limits(output_bytes=6)).stdout_bytes == b"abcd"
    with pytest.raises(ExecutionTimeout, match=r"0\.5 s of cpu time"):
        run(Spin(), on=backend, limits=Limits(cpu_seconds=30))
