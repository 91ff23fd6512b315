"""The output and exit of a live process as an `ExecResult`. Pure module."""

from __future__ import annotations

import os

from warmcell.core.types import ExecResult, Usage
from warmcell.runner.outcome import cut_at_character
from warmcell.sessions.processes import LiveProcess
from warmcell.sessions.streams import Beginning, Ring

_SIGNAL_BASE = 128
_KILLED = 9


def result_of(process: LiveProcess) -> ExecResult:
    """The result of a process that ended; one that ended with its cage counts as killed."""
    outcome = process.outcome
    status = _KILLED if outcome is None or outcome.status is None else outcome.status
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    rings = {output.name: output.ring for output in process.outputs}
    stdout, stderr = rings["stdout"], rings.get("stderr", Ring(1))
    return ExecResult(
        stdout=text_of(stdout),
        stderr=text_of(stderr),
        exit_code=_SIGNAL_BASE + number if number is not None else os.WEXITSTATUS(status),
        signal=number,
        duration=process.duration,
        stdout_bytes=stdout.content,
        stderr_bytes=stderr.content,
        stdout_truncated=stdout.is_truncated,
        stderr_truncated=stderr.is_truncated,
        usage=Usage(
            cpu_time=outcome.cpu_time if outcome else 0.0,
            wall_time=process.duration,
            peak_memory_bytes=outcome.peak_memory if outcome else 0,
        ),
        enforced=process.program.enforcement,
        denials=process.program.denials,
    )


def text_of(ring: Ring) -> str:
    """The guest's output as text. Truncated output starts and ends at a character boundary."""
    kept = ring.content
    if ring.is_truncated and isinstance(ring, Beginning):
        kept = cut_at_character(kept)
    elif ring.is_truncated:
        rest = 0
        while rest < min(3, len(kept)) and kept[rest] & 0xC0 == 0x80:
            rest += 1
        kept = kept[rest:]
    return kept.decode("utf-8", "replace")
