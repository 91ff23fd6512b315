"""What a program of a live cage has ended with."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell import ExecResult, MemoryExceeded
from warmcell.backends.process.started_programs import ProgramExit, StartedProgram


@pytest.mark.claim("WC-RX-8")
@pytest.mark.parametrize(
    ("status", "kills", "is_memory"),
    [
        (signal.SIGKILL, 1, True),
        (signal.SIGKILL, 0, False),
        (signal.SIGSEGV, 1, False),
        (signal.SIGABRT | 0x80, 1, False),
        (3 << 8, 1, False),
    ],
)
def test_only_what_the_kernel_has_killed_has_exceeded_the_memory(status: int, kills: int, is_memory: bool) -> None:
    """A child of a session may be killed for the memory, and the session crash by itself later."""
    killed = [0]
    template = SimpleNamespace(effective=SimpleNamespace(limits=SimpleNamespace(memory_mb=64)))
    cage: Any = SimpleNamespace(memory_kills=lambda: killed[0], template=template)
    program = StartedProgram(cage, 7, 0, "1", 0.0)
    killed[0] += kills
    program.ended.set_result(ProgramExit(status, 0.0, 0))
    assert isinstance(program.limit_error(ExecResult()), MemoryExceeded) is is_memory
