"""A program that others may have delayed runs once more before its client is told that it was too slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from warmcell import ExecRequest, ExecResult, ExecutionTimeout, FakeBackend, Usage
from warmcell.interfaces.serve.build_and_run import build_and_run


class Service:
    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend

    @asynccontextmanager
    async def run_slot(self, *_: object) -> AsyncIterator[FakeBackend]:
        yield self._backend


def late(cpu: float, wall: float) -> ExecutionTimeout:
    return ExecutionTimeout(1, ExecResult(usage=Usage(cpu, wall)))


@pytest.mark.parametrize(
    ("script", "end", "runs"),
    [
        ([late(0.1, 1.0), "done"], "ended", 2),
        ([late(0.1, 1.0), late(0.1, 1.0)], "timeout", 2),
        ([late(0.001, 1.0)], "timeout", 1),
        ([late(1.0, 1.0)], "timeout", 1),
    ],
    ids=["delayed", "delayed twice", "it slept", "it computed"],
)
def test_who_runs_again(script: list[Any], end: str, runs: int) -> None:
    backend = FakeBackend(script)
    service: Any = Service(backend)
    tenant: Any = None
    steps = asyncio.run(build_and_run(service, tenant, ExecRequest("python", "x", 1), 10, 10))
    assert steps.run is not None and steps.run.end == end
    assert len(backend.requests) == runs
