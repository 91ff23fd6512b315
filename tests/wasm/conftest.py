"""A backend for each test module, with its own cache."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import require

from warmcell.backends.wasm import supervisor as wasm_supervisor
from warmcell.backends.wasm.backend import WasmBackend
from warmcell.backends.wasm.module_loader import ModuleCache
from warmcell.backends.wasm.pool import Lease, WorkerPool, program_pool
from warmcell.backends.wasm.run_request import ModuleSource, RunRequest
from warmcell.backends.wasm.supervisor import Supervisor
from warmcell.backends.wasm.worker_handle import PendingRequest
from warmcell.core.types import MIB, ExecRequest, ExecResult
from warmcell.guest.wasm.protocol import ExitReport, RunLimits
from warmcell.lifetime.run import Run as LifetimeRun

Run = Callable[..., ExecResult]


@pytest.fixture(scope="session", autouse=True)
def _wasmtime() -> None:
    require(importlib.util.find_spec("wasmtime"), "wasmtime is not installed")


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WasmBackend]:
    made = WasmBackend(cache_dir=tmp_path_factory.mktemp("cache") / "wasm")
    yield made
    made.close()


@pytest.fixture
def run(backend: WasmBackend) -> Run:
    def run(code: str | bytes, timeout: float = 10, **fields: Any) -> ExecResult:
        return backend.execute_blocking(ExecRequest("wasm", code, timeout, **fields))

    return run


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    made = Supervisor(cache=ModuleCache(tmp_path_factory.mktemp("cache") / "wasm"))
    yield made
    made.close()


@pytest.fixture
def empty_cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "wasm"


@pytest.fixture
def no_workers() -> WorkerPool:
    """The program's pool, without workers of earlier tests."""
    pool = program_pool()
    until = time.monotonic() + 30
    while pool.is_making and time.monotonic() < until:
        time.sleep(0.02)
    pool.close()
    assert pool.pids == []
    return pool


@pytest.fixture
def sent_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the modules of all runs that workers have been sent, in order."""
    sent: list[str] = []
    await_exit = wasm_supervisor._await_exit

    def note(lease: Lease, pending: PendingRequest, key: str) -> ExitReport:
        sent.append(key)
        return await_exit(lease, pending, key)

    monkeypatch.setattr(wasm_supervisor, "_await_exit", note)
    return sent


def run_once(supervisor: Supervisor, source: ModuleSource, request: RunRequest, **options: Any) -> ExecResult:
    """One run that is never cancelled."""
    return supervisor.run(source, request, LifetimeRun(), **options)


def take_limits(fields: dict[str, Any], **defaults: Any) -> RunLimits:
    """The limits among the keyword arguments of a test, which are removed from `fields`."""
    names = ("memory_limit_mb", *RunLimits._fields)
    given = {**defaults, **{name: fields.pop(name) for name in names if name in fields}}
    memory = {"memory_bytes": given.pop("memory_limit_mb") * MIB} if "memory_limit_mb" in given else {}
    return RunLimits(**memory, **given)


class FailingListener:
    """Takes no output."""

    def deliver(self, stream: str, data: bytes) -> None:
        raise ZeroDivisionError

    def wait_target(self) -> None:
        return None

    def catch_up(self) -> None: ...
