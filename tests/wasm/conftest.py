"""A backend for each test module, with a cache of its own."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import require

from warmcell.backends.wasm.backend import WasmBackend
from warmcell.backends.wasm.module_cache import ModuleCache
from warmcell.backends.wasm.module_source import ModuleSource
from warmcell.backends.wasm.pool import WorkerPool, program_pool
from warmcell.backends.wasm.run_request import RunRequest
from warmcell.backends.wasm.supervisor import Supervisor
from warmcell.core.types import ExecRequest, ExecResult
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
    """The program's pool, with nobody in it from the tests before."""
    pool = program_pool()
    until = time.monotonic() + 30
    while pool._is_making_spare and time.monotonic() < until:
        time.sleep(0.02)
    pool.close()
    assert pool.pids == []
    return pool


def run_once(supervisor: Supervisor, source: ModuleSource, request: RunRequest, **options: Any) -> ExecResult:
    """One run for a caller who never gives it up."""
    return supervisor.run(source, request, LifetimeRun(), **options)
