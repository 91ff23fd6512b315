"""Whose fault a failure among many was: the host's is tried once more, and never told as the program's."""

from __future__ import annotations

import pytest

from warmcell import (
    BackendUnavailable,
    ExecRequest,
    ExecResult,
    ExecutionFailed,
    ExecutionTimeout,
    FakeBackend,
    InvalidRequest,
    MemoryExceeded,
)
from warmcell.backends.fake import Reply

REQUEST = ExecRequest("python", "x", 5)
HOST = ExecutionFailed("the host had a bad moment")


@pytest.mark.parametrize(
    ("script", "attempts", "ends"),
    [
        (["fine"], 1, "fine"),
        ([HOST, "fine"], 2, "fine"),
        ([HOST, HOST, "fine"], 2, "host"),
        ([OSError("odd"), "fine"], 2, "fine"),
        ([OSError("odd"), OSError("odd"), "fine"], 2, "host"),
        ([ExecutionTimeout(1), "fine"], 1, "guest"),
        ([MemoryExceeded(1), "fine"], 1, "guest"),
        ([InvalidRequest("no"), "fine"], 1, "caller"),
        ([BackendUnavailable("never here"), "fine"], 1, "host"),
        ([ExecResult(exit_code=1, stdout="fine"), "again"], 1, "fine"),
    ],
)
def test_a_failure_of_the_host_is_tried_once_more(script: list[Reply], attempts: int, ends: str) -> None:
    backend = FakeBackend(script)
    (outcome,) = backend.run_many_blocking([REQUEST])
    assert len(backend.requests) == attempts
    assert (outcome.error.fault if outcome.error else outcome.result and outcome.result.stdout) == ends


def test_the_memory_of_many_is_that_of_a_few() -> None:
    """Results are let go of once they were read: of 300, never more than twice as many as run at a time."""
    import gc

    backend = FakeBackend(lambda request: "x")
    most = 0
    for outcome in backend.run_many_blocking((REQUEST for _ in range(300)), 4):
        if outcome.index % 25 == 0:
            most = max(most, sum(isinstance(item, ExecResult) for item in gc.get_objects()))
        backend.requests.clear()
    assert 0 < most <= 2 * 4 + 8
