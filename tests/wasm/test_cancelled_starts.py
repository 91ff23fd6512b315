"""A run that is cancelled while its worker starts ends at once, whatever that start is waiting for."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import PATIENCE, require, until, until_async
from tests.wasm import guests

from warmcell import BackendUnavailable, ExecRequest
from warmcell.backends.wasm import caged_launcher
from warmcell.backends.wasm.backend import WasmBackend
from warmcell.backends.wasm.launcher import worker_launcher
from warmcell.backends.wasm.pool import WorkerPool
from warmcell.pool import manager_process, zygote
from warmcell.pool.manager_process import ManagerProcess
from warmcell.pool.shared_zygotes import SharedZygotes
from warmcell.runner.cell import Cell

HELLO = ExecRequest("wasm", guests.prints("hello\n"), 60)
#: Longer than any test.
_FOR_EVER = 10 * PATIENCE


class _Starts:
    """How often something was started that never becomes ready. `is_stuck` can be reset."""

    def __init__(self) -> None:
        self.is_stuck = True
        self.managers: list[ManagerProcess] = []
        self.count = 0


def _stick_zygotes(starts: _Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager without an order waits for it."""
    acquire = manager_process.acquire_manager

    def acquire_stuck(interpreter: str, prefix: tuple[str, ...], order: dict[str, Any]) -> ManagerProcess:
        if not starts.is_stuck:
            return acquire(interpreter, prefix, order)
        starts.managers.append(ManagerProcess(interpreter, prefix))
        starts.count += 1
        return starts.managers[-1]

    monkeypatch.setattr(zygote, "acquire_manager", acquire_stuck)


def _stick_cells(starts: _Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders that are not sent."""
    send, close_their_ends = zygote.ZygoteProcess._send, Cell.close_their_ends

    def send_nothing(self: zygote.ZygoteProcess, *words: Any) -> None:
        if not starts.is_stuck:
            return send(self, *words)
        starts.count += 1

    def keep_open(self: Cell) -> None:
        if not starts.is_stuck:
            close_their_ends(self)

    monkeypatch.setattr(zygote.ZygoteProcess, "_send", send_nothing)
    monkeypatch.setattr(Cell, "close_their_ends", keep_open)


@pytest.fixture(params=[_stick_zygotes, _stick_cells], ids=["zygote", "cell"])
def starts(request: pytest.FixtureRequest, no_workers: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> _Starts:
    require(worker_launcher().is_confining, "workers are not confined here")
    starts = _Starts()
    monkeypatch.setattr(caged_launcher, "shared_zygotes", SharedZygotes())
    monkeypatch.setattr(zygote, "START_SECONDS", _FOR_EVER)
    monkeypatch.setattr(caged_launcher, "_READY_SECONDS", _FOR_EVER)
    stick: Callable[[_Starts, pytest.MonkeyPatch], None] = request.param
    stick(starts, monkeypatch)
    return starts


@pytest.fixture
def backend(starts: _Starts, no_workers: WorkerPool, tmp_path: Path) -> Iterator[WasmBackend]:
    with WasmBackend(cache_dir=tmp_path / "cache") as backend:
        yield backend
        starts.is_stuck = False
        assert backend.execute_blocking(HELLO).stdout == "hello\n"
        until(lambda: not any(manager.is_running() for manager in starts.managers))
    no_workers.close()


async def test_an_asynchronous_run(starts: _Starts, backend: WasmBackend) -> None:
    task = asyncio.create_task(backend.execute(HELLO))
    await until_async(lambda: starts.count)
    task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE)
    assert task.cancelled() and backend.worker_pids() == []


def test_a_blocking_run(starts: _Starts, backend: WasmBackend) -> None:
    def interrupt() -> None:
        until(lambda: starts.count)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        backend.execute_blocking(HELLO)
    interrupting.join()
    assert backend.worker_pids() == []


def test_closing_the_backend(starts: _Starts, backend: WasmBackend, tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def run(closing: WasmBackend) -> None:
        try:
            closing.execute_blocking(HELLO)
        except BaseException as error:
            failures.append(error)

    with WasmBackend(cache_dir=tmp_path / "other") as closing:
        running = threading.Thread(target=run, args=[closing])
        running.start()
        until(lambda: starts.count)
    running.join(PATIENCE)
    assert [type(failure) for failure in failures] == [BackendUnavailable]


async def test_another_run_that_waits_for_the_same_start(starts: _Starts, backend: WasmBackend) -> None:
    first = asyncio.create_task(backend.execute(HELLO))
    await until_async(lambda: starts.count)
    starts.is_stuck = False
    second = asyncio.create_task(backend.execute(HELLO))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first, second}, timeout=PATIENCE)
    assert first.cancelled() and second.result().stdout == "hello\n"
