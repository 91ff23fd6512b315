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


class Compiler:
    """Takes longer than it may by the clock. Whether it had a processor only the backend knows."""

    async def build(self, request: ExecRequest, *, timeout: float) -> Compiler:
        await asyncio.sleep(10 * timeout)
        if request.code == "slow":
            raise ExecutionTimeout(timeout, ExecResult(), phase="build")
        return self

    async def __aenter__(self) -> Compiler:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def run(self) -> ExecResult:
        return ExecResult("done")


@pytest.mark.parametrize(("code", "compiled", "ran"), [("delayed", "ended", True), ("slow", "timeout", False)])
def test_a_compiler_that_others_delayed_is_not_out_of_time(code: str, compiled: str, ran: bool) -> None:
    backend: Any = Compiler()
    service: Any = Service(backend)
    tenant: Any = None
    steps = asyncio.run(build_and_run(service, tenant, ExecRequest("c", code, 1), 0.005, 10))
    assert steps.compile is not None and steps.compile.end == compiled
    assert (steps.run is not None) is ran
