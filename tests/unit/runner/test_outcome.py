"""How a run ended is judged by a pure function: facts in, a result or the error that a limit calls for out."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, MemoryExceeded
from warmcell.core.types import MIB, Denial, Enforced
from warmcell.runner.not_started import NotStarted
from warmcell.runner.outcome import Exit, FilePages, KernelUsage, ResidentPeak, RunTerms, cut_at_character, judge
from warmcell.runner.streams import Capture

TERMS = RunTerms(timeout=5, memory_mb=64, enforced=Enforced(isolation_class="process"))
EXIT_3 = 3 << 8


def capture(data: bytes = b"", cap: int = 1000) -> Capture:
    made = Capture(cap)
    made.add(data)
    return made


def end(**facts: object) -> Exit:
    return replace(Exit(capture(b"out\n"), capture(), started_at=12.0, duration=0.5, status=0), **facts)  # type: ignore[arg-type]


def test_an_exit_status_is_a_result() -> None:
    result = judge(end(status=EXIT_3, cpu_time=0.25), TERMS, KernelUsage(), [Denial("syscall", "mount", "", "")])
    assert (result.exit_code, result.signal, result.stdout) == (3, None, "out\n")
    assert result.usage.cpu_time == 0.25 and [denial.what for denial in result.denials] == ["mount"]


def test_a_signal_is_told_as_shells_do() -> None:
    result = judge(end(status=int(signal.SIGSEGV)), TERMS, KernelUsage(), [])
    assert (result.exit_code, result.signal) == (128 + signal.SIGSEGV, signal.SIGSEGV)


def test_a_limit_that_has_a_signal_of_its_own_is_told_by_it() -> None:
    result = judge(end(status=int(signal.SIGKILL), verdict="disk"), TERMS, KernelUsage(), [])
    assert (result.exit_code, result.signal) == (128 + signal.SIGXFSZ, signal.SIGXFSZ)


@pytest.mark.parametrize("facts", [{"verdict": "cpu"}, {"stop_reason": "cpu"}], ids=["seen by init", "by the cgroup"])
@pytest.mark.parametrize("status", [int(signal.SIGKILL), None], ids=["reported", "unreported"])
def test_too_much_cpu_time_is_a_timeout_by_that_clock(facts: dict[str, str], status: int | None) -> None:
    with pytest.raises(ExecutionTimeout, match="after 2 s of cpu time") as raised:
        judge(end(status=status, **facts), replace(TERMS, cpu_seconds=2.0), KernelUsage(), [])
    assert raised.value.clock == "cpu" and raised.value.result is not None
    assert (raised.value.result.stdout, raised.value.result.signal) == ("out\n", signal.SIGXCPU)
    assert raised.value.result.usage.cpu_time >= 2.0


def test_what_came_before_the_guest_could_run_is_queueing() -> None:
    assert judge(end(), replace(TERMS, requested_at=10.5), KernelUsage(), []).queued == 1.5
    with pytest.raises(ExecutionTimeout) as raised:
        judge(end(status=None, stop_reason="timeout"), replace(TERMS, requested_at=11.0), KernelUsage(), [])
    assert raised.value.result is not None and raised.value.result.queued == 1.0


@pytest.mark.parametrize("why", ["timeout", "cpu", "not started"])
def test_who_ended_by_itself_at_the_last_moment_was_not_ended_by_us(why: str) -> None:
    """A busy host reports late; we only ever kill, so any other status is the guest's own."""
    assert judge(end(status=EXIT_3, stop_reason=why), TERMS, KernelUsage(), []).exit_code == 3


def test_a_guest_that_never_got_to_run_is_our_failure() -> None:
    with pytest.raises(ExecutionFailed, match="did not start") as raised:
        judge(end(status=int(signal.SIGKILL), stop_reason="not started"), TERMS, KernelUsage(), [])
    assert raised.value.fault == "host"


def test_a_timeout_says_what_timed_out() -> None:
    with pytest.raises(ExecutionTimeout, match="build timed out") as raised:
        judge(end(status=9, stop_reason="timeout"), replace(TERMS, phase="build"), KernelUsage(), [])
    assert raised.value.phase == "build"


def test_what_the_kernel_counted_comes_before_what_was_looked_at() -> None:
    kernel = KernelUsage(peak_memory=7, cpu_time=1.5)
    usage = judge(end(cpu_time=1.0, peak_memory=5), TERMS, kernel, []).usage
    assert (usage.cpu_time, usage.peak_memory_bytes) == (1.5, 7)


@pytest.mark.parametrize(
    ("facts", "kernel"),
    [
        ({"verdict": "memory"}, KernelUsage()),
        ({}, KernelUsage(memory_kills=1)),
        ({"status": None}, KernelUsage(0, 0, 1)),
    ],
    ids=["seen by init", "killed by the kernel", "killed before it could report"],
)
def test_memory_is_an_error_with_what_there_was(facts: dict[str, object], kernel: KernelUsage) -> None:
    with pytest.raises(MemoryExceeded) as raised:
        judge(end(**facts), TERMS, kernel, [])
    assert raised.value.limit_mb == 64 and raised.value.result is not None and raised.value.result.stdout == "out\n"


def test_a_kill_for_memory_that_was_not_the_guests_is_not_its_fault() -> None:
    with pytest.raises(ExecutionFailed, match="within its own limit"):
        judge(end(status=int(signal.SIGKILL)), TERMS, KernelUsage(outside_kills=1), [])
    assert judge(end(status=0), TERMS, KernelUsage(outside_kills=1), []).ok, "a child of it died, and it coped"


def test_a_timeout_has_the_partial_output() -> None:
    with pytest.raises(ExecutionTimeout) as raised:
        judge(end(status=None, stop_reason="timeout"), TERMS, KernelUsage(), [])
    assert raised.value.result is not None and raised.value.result.stdout == "out\n"


def test_no_report_and_no_reason_is_a_failure() -> None:
    with pytest.raises(ExecutionFailed, match="before it could report"):
        judge(end(status=None), TERMS, KernelUsage(), [])


def test_a_program_that_could_not_start_says_so() -> None:
    with pytest.raises(NotStarted, match=r"could not start the program: /x y: nope") as raised:
        judge(end(start_failure="13 /x y: nope"), TERMS, KernelUsage(), [])
    assert raised.value.errno == 13


def test_output_is_cut_between_characters_and_nothing_is_added() -> None:
    result = judge(end(stdout=capture("äöü".encode() * 10, cap=5)), TERMS, KernelUsage(), [])
    assert result.stdout_truncated and result.stdout_bytes == "äö".encode()
    assert result.stdout == "äö"


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (b"abc", b"abc"),
        ("ä".encode()[:1], b""),
        ("a€".encode()[:3], b"a"),
        ("a😀".encode()[:4], b"a"),
        ("a😀".encode(), "a😀".encode()),
        (b"\xff\xfe", b"\xff\xfe"),
        (b"", b""),
    ],
)
def test_cutting_at_a_character(data: bytes, kept: bytes) -> None:
    assert cut_at_character(data) == kept


FILES = FilePages(usual=8 * MIB, new=2 * MIB)


@pytest.mark.claim("WC-RX-2")
@pytest.mark.parametrize(
    ("resident", "is_over"),
    [
        (None, False),
        (ResidentPeak(80 * MIB, 0, -1), True),
        (ResidentPeak(72 * MIB, 0, -1), False),  # all of the excess may be pages of files
        (ResidentPeak(90 * MIB, 20 * MIB, -1), False),  # shared with the process that it was forked from
        (ResidentPeak(80 * MIB, 0, 20 * MIB), False),
        (ResidentPeak(80 * MIB, 0, 13 * MIB), True),
        (ResidentPeak(80 * MIB, 0, 14 * MIB), False),
    ],
)
def test_a_peak_that_proves_too_much_memory_decides(resident: ResidentPeak | None, is_over: bool) -> None:
    end = Exit(Capture(1), Capture(1), started_at=0.0, duration=0.0, status=0, resident=resident)
    assert end.is_over_memory(64 * MIB, FILES) == is_over
