"""How a run ended, as whole results: facts in, the result out, alone or in the error that carries it."""

from __future__ import annotations

import signal
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, MemoryExceeded
from warmcell.core.records import replace
from warmcell.core.types import Denial, Enforced, ExecResult, Usage
from warmcell.runner.not_started import NotStarted
from warmcell.runner.outcome import Exit, KernelUsage, RunTerms, cut_at_character, judge, text_of
from warmcell.runner.streams import Capture

ENFORCED = Enforced(isolation_class="process")
TERMS = RunTerms(timeout=5, memory_mb=64, enforced=ENFORCED, cpu_seconds=2.0, requested_at=10.0)
DENIALS = [Denial("syscall", "mount", "seccomp", "")]
KILL, XCPU, XFSZ, SYS = (int(getattr(signal, f"SIG{name}")) for name in ("KILL", "XCPU", "XFSZ", "SYS"))


def capture(data: bytes, cap: int = 9) -> Capture:
    made = Capture(cap)
    made.add(data)
    return made


def make_exit(**facts: Any) -> Exit:
    told = {"status": 0, "cpu_time": 0.25, "peak_memory": 77, **facts}
    return Exit(capture(b"out\n"), capture(b"err"), started_at=12.0, duration=0.5, **told)


RESULT = ExecResult(
    stdout="out\n",
    stderr="err",
    exit_code=0,
    signal=None,
    duration=0.5,
    stdout_bytes=b"out\n",
    stderr_bytes=b"err",
    stdout_truncated=False,
    stderr_truncated=False,
    usage=Usage(cpu_time=0.25, wall_time=0.5, peak_memory_bytes=77),
    enforced=ENFORCED,
    denials=DENIALS,
    queued=2.0,
)
KILLED = {"exit_code": 128 + KILL, "signal": KILL}
OVER_CPU = {"exit_code": 128 + XCPU, "signal": XCPU, "usage": Usage(2.0, 0.5, 77)}


@pytest.mark.parametrize(
    ("facts", "changed"),
    [
        ({}, {}),
        ({"status": 3 << 8}, {"exit_code": 3}),
        ({"status": KILL}, KILLED),
        ({"status": KILL, "verdict": "disk"}, {"exit_code": 128 + XFSZ, "signal": XFSZ}),
        ({"status": KILL, "stop_reason": "cancelled"}, KILLED),
        ({"status": 0, "stop_reason": "timeout"}, {}),
        ({"status": 0, "verdict": "blind"}, {}),
        ({"status": 0, "stop_reason": "cpu"}, {}),
        ({"status": 0, "stop_reason": "not started"}, {}),
        ({"started_at": 9.0}, {"queued": 0.0}),
        ({"started_at": 10.5}, {"queued": 0.5}),
        ({"stdout": capture(b"123456789")}, {"stdout": "123456789", "stdout_bytes": b"123456789"}),
        (
            {"stdout": capture(b"1234567890")},
            {
                "stdout": "123456789",
                "stdout_bytes": b"123456789",
                "stdout_truncated": True,
            },
        ),
        (
            {"stderr": capture(b"12345678\xc3\xa9")},
            {
                "stderr": "12345678",
                "stderr_bytes": b"12345678",
                "stderr_truncated": True,
            },
        ),
        ({"stderr": capture(b"123456789")}, {"stderr": "123456789", "stderr_bytes": b"123456789"}),
        (
            {"stdout": capture(b"\xff" + b"x" * 10)},
            {
                "stdout": "\N{REPLACEMENT CHARACTER}xxxxxxxx",
                "stdout_bytes": b"\xffxxxxxxxx",
                "stdout_truncated": True,
            },
        ),
        ({"stdout": capture(b"\xff")}, {"stdout": "\N{REPLACEMENT CHARACTER}", "stdout_bytes": b"\xff"}),
    ],
)
def test_results(facts: dict[str, Any], changed: dict[str, Any]) -> None:
    assert judge(replace(make_exit(), **facts), TERMS, KernelUsage(), DENIALS) == replace(RESULT, **changed)


@pytest.mark.parametrize(
    ("kernel", "usage"),
    [
        (KernelUsage(), Usage(0.25, 0.5, 77)),
        (KernelUsage(peak_memory=5, cpu_time=1.5), Usage(1.5, 0.5, 5)),
        (KernelUsage(peak_memory=1), Usage(0.25, 0.5, 1)),
        (KernelUsage(peak_memory=-1), Usage(0.25, 0.5, 77)),
        (KernelUsage(process_refusals=1, outside_kills=1), Usage(0.25, 0.5, 77)),
    ],
)
def test_what_was_used(kernel: KernelUsage, usage: Usage) -> None:
    assert judge(make_exit(), TERMS, kernel, DENIALS) == replace(RESULT, usage=usage)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("code", "number"), [(127, None), (128, None), (129, 1), (128 + SYS, SYS), (129 + SYS, None), (255, None)]
)
def test_signals_that_a_wrapper_made_into_codes(wrapped: bool, code: int, number: int | None) -> None:
    result = judge(make_exit(status=code << 8), replace(TERMS, is_wrapped=wrapped), KernelUsage(), DENIALS)
    assert result == replace(RESULT, exit_code=code, signal=number if wrapped else None)


@pytest.mark.parametrize("status", [KILL, None])
@pytest.mark.parametrize(
    ("facts", "kernel", "changed", "error"),
    [
        ({"stop_reason": "timeout"}, {}, KILLED, ExecutionTimeout),
        ({"stop_reason": "timeout"}, {"outside_kills": 1}, KILLED, ExecutionTimeout),
        ({"stop_reason": "cpu"}, {}, OVER_CPU, ExecutionTimeout),
        ({"verdict": "cpu"}, {}, OVER_CPU, ExecutionTimeout),
        ({"verdict": "cpu"}, {"cpu_time": 2.5}, {**OVER_CPU, "usage": Usage(2.5, 0.5, 77)}, ExecutionTimeout),
        ({"verdict": "memory"}, {}, KILLED, MemoryExceeded),
        ({}, {"memory_kills": 1}, KILLED, MemoryExceeded),
        ({"stop_reason": "timeout"}, {"memory_kills": 1}, KILLED, MemoryExceeded),
    ],
)
def test_limits(status: int | None, facts: Any, kernel: Any, changed: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        judge(make_exit(status=status, **facts), TERMS, KernelUsage(**kernel), DENIALS)
    assert caught.value.result == replace(RESULT, **changed)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("facts", "terms", "told"),
    [
        ({"stop_reason": "timeout"}, {}, (5, "run", "wall")),
        ({"stop_reason": "timeout"}, {"phase": "build"}, (5, "build", "wall")),
        ({"stop_reason": "cpu"}, {}, (2.0, "run", "cpu")),
        ({"stop_reason": "cpu"}, {"cpu_seconds": None, "phase": "build"}, (0.0, "build", "cpu")),
    ],
)
def test_timeouts(facts: Any, terms: Any, told: tuple[float, str, str]) -> None:
    with pytest.raises(ExecutionTimeout) as caught:
        judge(make_exit(status=KILL, **facts), replace(TERMS, **terms), KernelUsage(), [])
    assert (caught.value.timeout, caught.value.phase, caught.value.clock) == told


@pytest.mark.parametrize(
    ("facts", "kernel", "message"),
    [
        ({"status": None}, {}, "ended before it could report"),
        ({"status": None, "stop_reason": "cancelled"}, {}, "ended before it could report"),
        ({"status": None, "stop_reason": "not started"}, {}, "did not start"),
        ({"status": KILL, "stop_reason": "not started"}, {}, "did not start"),
        ({"status": KILL}, {"outside_kills": 1}, "memory of the host or container ran out"),
        ({"status": KILL, "verdict": "blind"}, {}, "could not measure"),
        ({"start_failure": "2 no such file"}, {}, "could not start the program: no such file$"),
    ],
)
def test_failures_that_are_ours(facts: Any, kernel: Any, message: str) -> None:
    with pytest.raises(ExecutionFailed, match=message):
        judge(make_exit(**facts), TERMS, KernelUsage(**kernel), [])


def test_what_was_never_told() -> None:
    out = capture(b"")
    assert Exit(out, out, 1.0, 2.0) == Exit(out, out, 1.0, 2.0, "", None, "", 0.0, 0, [], [], None, "")
    assert RunTerms(1, 2, ENFORCED) == RunTerms(1, 2, ENFORCED, None, 0.0, "run", False)
    assert KernelUsage() == KernelUsage(0, 0.0, 0, 0, 0)
    assert NotStarted(2, "why").errno == 2


@pytest.mark.parametrize("record", [TERMS, KernelUsage()])
def test_nobody_changes_the_terms(record: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(record, record.__slots__[0], 1)


@pytest.mark.parametrize("character", ["a", "é", "ß", "€", "\u1100", "😀", "\U00040000", "\U0010ffff"])
def test_a_character_is_kept_whole_or_left_out(character: str) -> None:
    whole = character.encode()
    assert cut_at_character(b"xy" + whole) == b"xy" + whole
    for kept in range(1, len(whole)):
        assert cut_at_character(b"xy" + whole[:kept]) == b"xy"
        assert cut_at_character(whole[:kept]) == b""


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\x80" * 5, b"\xc3\x80\x80\x80\x80", b"\xff", b"a\xf8", b"\xf0\x9f\x98\x80\x80"]
)
def test_bytes_that_are_no_text_stay(data: bytes) -> None:
    assert cut_at_character(data) == data
    assert text_of(capture(data)) == (data.decode("utf-8", "replace"), data)
