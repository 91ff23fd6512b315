"""What a host program may do to a backend: fork, cancel, close, run out of descriptors, kill workers."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.helpers import eventually, until, until_async
from tests.wasm import guests

from warmcell.backends.wasm.backend import WasmBackend
from warmcell.backends.wasm.module_loader import ModuleLoader
from warmcell.backends.wasm.pool import WorkerPool
from warmcell.core.errors import BackendBusy, BackendUnavailable, ExecutionFailed, SandboxError
from warmcell.core.types import ExecRequest, ExecResult
from warmcell.lifetime import descriptor_pressure, descriptors

HELLO = guests.prints("hello\n")
FOREVER = guests.sleeps(600_000_000_000)


@pytest.fixture
def alone(tmp_path: Path, no_workers: WorkerPool) -> Iterator[WasmBackend]:
    with WasmBackend(cache_dir=tmp_path / "cache") as backend:
        yield backend
    no_workers.close()


def run(backend: WasmBackend, code: str = HELLO, timeout: float = 20, **fields: object) -> ExecResult:
    return backend.execute_blocking(ExecRequest("wasm", code, timeout, **fields))  # type: ignore[arg-type]


def in_another_program(script: str, *, status: int = 0) -> str:
    prelude = f"""
import asyncio, os, sys, threading, time
from warmcell.backends.wasm.backend import WasmBackend
from warmcell.core.types import ExecRequest
HELLO, FOREVER = {HELLO!r}, {FOREVER!r}
def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    command = [sys.executable, "-c", prelude + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.mark.attack("S2-26")
class TestForks:
    def test_a_childs_exit_leaves_the_parents_workers_alone(self, tmp_path: Path) -> None:
        script = f"""
backend = WasmBackend(cache_dir={str(tmp_path / "cache")!r})
backend.execute_blocking(ExecRequest("wasm", HELLO, 20))
before = backend.worker_pids()
for leave in (sys.exit, lambda: backend.close()):
    child = os.fork()
    if not child:
        leave()
        sys.exit(0)
    assert status_of(child) == 0
result = backend.execute_blocking(ExecRequest("wasm", HELLO, 20))
print(result.stdout.strip(), backend.worker_pids() == before, all(os.path.exists(f"/proc/{{pid}}") for pid in before))
"""
        assert in_another_program(script) == "hello True True\n"

    @pytest.mark.parametrize("how", ["execute_blocking(r)", "execute(r)"])
    def test_a_child_starts_its_own_workers(self, tmp_path: Path, how: str) -> None:
        call = f"asyncio.run(backend.{how})" if how.startswith("execute(") else f"backend.{how}"
        script = f"""
backend = WasmBackend(cache_dir={str(tmp_path / "cache")!r})
r = ExecRequest("wasm", HELLO, 20)
{call}
parents = set(backend.worker_pids())
child = os.fork()
if not child:
    assert {call}.stdout == "hello\\n"
    assert not parents & set(backend.worker_pids())
    sys.exit(7)
assert status_of(child) == 7
assert {call}.stdout == "hello\\n"
assert set(backend.worker_pids()) == parents
print("both")
"""
        assert in_another_program(script) == "both\n"

    def test_a_child_uses_its_workers_again(self, tmp_path: Path) -> None:
        """As the processes of a server that made its backend before it forked."""
        script = f"""
backend = WasmBackend(cache_dir={str(tmp_path / "cache")!r})
child = os.fork()
if not child:
    seen = set()
    for _ in range(3):
        assert backend.execute_blocking(ExecRequest("wasm", HELLO, 20)).stdout == "hello\\n"
        seen.add(tuple(backend.worker_pids()))
    assert len(seen) == 1 and len(seen.pop()) == 1
    backend.close()
    assert backend.worker_pids() == []
    sys.exit(7)
print(status_of(child))
"""
        assert in_another_program(script) == "7\n"

    def test_a_fork_in_the_middle_of_a_run(self, tmp_path: Path) -> None:
        """The child finds no held lock and no run in progress; the parent's run continues and can be cancelled."""
        script = f"""
backend = WasmBackend(cache_dir={str(tmp_path / "cache")!r})
backend.execute_blocking(ExecRequest("wasm", HELLO, 20))
def endless():
    try:
        backend.execute_blocking(ExecRequest("wasm", FOREVER, 60))
    except Exception as error:
        print(type(error).__name__)
thread = threading.Thread(target=endless)
thread.start()
time.sleep(0.5)
busy = backend.worker_pids()
child = os.fork()
if not child:
    assert backend.execute_blocking(ExecRequest("wasm", HELLO, 20)).stdout == "hello\\n"
    backend.close()
    sys.exit(0)
assert status_of(child) == 0
assert thread.is_alive() and backend.worker_pids() == busy
backend.close()
thread.join(10)
print(thread.is_alive())
"""
        assert in_another_program(script) == "BackendUnavailable\nFalse\n"

    def test_a_child_holds_nothing_of_a_worker(self, tmp_path: Path) -> None:
        """Otherwise a worker whose supervisor is gone would live until the child exits."""
        script = f"""
backend = WasmBackend(cache_dir={str(tmp_path / "cache")!r})
backend.execute_blocking(ExecRequest("wasm", HELLO, 20))
print(*backend.worker_pids(), flush=True)
if not os.fork():
    os.close(1)
    os.close(2)
    time.sleep(20)
    os._exit(0)
os.kill(os.getpid(), 9)
"""
        pids = [int(word) for word in in_another_program(script, status=-signal.SIGKILL).split()]
        assert pids
        assert _have_ended(pids)


def _have_ended(pids: list[int]) -> bool:
    return eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


class TestWorkersThatDie:
    def test_a_worker_that_died_while_idle_is_replaced(self, alone: WasmBackend) -> None:
        for death in (signal.SIGKILL, signal.SIGTERM):
            run(alone)
            (pid,) = alone.worker_pids()
            os.kill(pid, death)
            assert _have_ended([pid])
            assert run(alone).stdout == "hello\n"

    def test_a_worker_that_dies_before_it_reads_the_run_is_replaced(
        self, alone: WasmBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was alive when checked, and dead when used."""
        from warmcell.backends.wasm.worker_handle import WorkerHandle

        run(alone)
        (pid,) = alone.worker_pids()
        look = WorkerHandle.is_waiting

        def look_and_kill(worker: WorkerHandle) -> bool:
            was_waiting = look(worker)
            os.kill(pid, signal.SIGKILL)
            _have_ended([pid])
            return was_waiting

        monkeypatch.setattr(WorkerHandle, "is_waiting", look_and_kill)
        assert run(alone).stdout == "hello\n"

    def test_a_worker_killed_during_a_run_is_the_hosts_fault(self, alone: WasmBackend, sent_runs: list[str]) -> None:
        run(alone)
        (pid,) = alone.worker_pids()

        def kill() -> None:
            until(lambda: len(sent_runs) == 2)
            os.kill(pid, signal.SIGKILL)

        killing = threading.Thread(target=kill)
        killing.start()
        with pytest.raises(ExecutionFailed) as caught:
            run(alone, FOREVER)
        killing.join()
        assert (caught.value.fault, caught.value.retryable) == ("host", True)


class TestCancelling:
    async def test_a_late_cancellation_never_hits_the_next_run(self, alone: WasmBackend) -> None:
        """Cancelled just when it ends: the worker then belongs to another run."""
        await alone.execute(ExecRequest("wasm", HELLO, 20))

        async def cancel_after(delay: float) -> None:
            task = asyncio.create_task(alone.execute(ExecRequest("wasm", HELLO, 20)))
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.wait([task])

        for step in range(40):
            await cancel_after(step * 0.0001)
            assert (await alone.execute(ExecRequest("wasm", HELLO, 20))).stdout == "hello\n"

    async def test_a_second_cancel_waits_as_well(self, alone: WasmBackend, sent_runs: list[str]) -> None:
        await alone.execute(ExecRequest("wasm", HELLO, 20))
        task = asyncio.create_task(alone.execute(ExecRequest("wasm", FOREVER, 60)))
        await until_async(lambda: len(sent_runs) == 2)
        (pid,) = alone.worker_pids()
        os.kill(pid, signal.SIGSTOP)  # its end now takes a while
        task.cancel()
        await asyncio.sleep(0)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0.001)
        assert not os.path.exists(f"/proc/{pid}")
        assert pid not in alone.worker_pids()


class TestClosing:
    def test_closing_during_blocking_runs_ends_them_first(self, alone: WasmBackend) -> None:
        errors: list[BaseException] = []

        def endless() -> None:
            try:
                run(alone, FOREVER, 60)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=endless) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        pids = alone.worker_pids()
        alone.close()
        for thread in threads:
            thread.join(10)
        assert [type(error) for error in errors] == [BackendUnavailable] * 3
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)

    def test_a_program_that_ends_without_closing_leaves_nothing(self, tmp_path: Path) -> None:
        script = f"""
backend = WasmBackend(cache_dir={str(tmp_path / "cache")!r})
backend.execute_blocking(ExecRequest("wasm", HELLO, 20))
threading.Thread(target=lambda: backend.execute_blocking(ExecRequest("wasm", FOREVER, 60)), daemon=True).start()
time.sleep(0.5)
print(*backend.worker_pids())
"""
        pids = [int(word) for word in in_another_program(script).split()]
        assert pids
        assert _have_ended(pids)


class TestWaiting:
    async def test_waiting_longer_than_queue_timeout_is_an_error(self, tmp_path: Path) -> None:
        with WasmBackend(cache_dir=tmp_path / "cache", max_workers=1, queue_timeout=0.3) as backend:
            busy = asyncio.create_task(backend.execute(ExecRequest("wasm", FOREVER, 60)))
            await asyncio.sleep(0.1)
            with pytest.raises(BackendBusy) as caught:
                await backend.execute(ExecRequest("wasm", HELLO, 20))
            assert (caught.value.fault, caught.value.retryable) == ("host", True)
            busy.cancel()
            await asyncio.wait([busy])

    async def test_waiting_is_not_the_guests_time(self, tmp_path: Path) -> None:
        with WasmBackend(cache_dir=tmp_path / "cache", max_workers=1) as backend:
            await backend.execute(ExecRequest("wasm", HELLO, 20))
            slow, quick = guests.sleeps(2_500_000_000), guests.sleeps(10_000_000)
            requests = ExecRequest("wasm", slow, 20), ExecRequest("wasm", quick, 2)
            first, second = await asyncio.gather(*map(backend.execute, requests))  # in this order
            assert second.queued > 1.0
            assert second.duration < second.queued
            assert first.queued < second.queued

    def test_compiling_is_not_the_guests_time(self, alone: WasmBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        heavy = "(local.set 0 (i64.mul (i64.add (local.get 0) (i64.const 3)) (i64.const 7)))" * 400
        large = HELLO.replace("(memory", f"(func (local i64) {heavy}) " * 60 + "(memory", 1)
        compile_module, seconds = ModuleLoader._compile, list[float]()

        def measure(*words: Any) -> None:
            began = time.monotonic()
            compile_module(*words)
            seconds.append(time.monotonic() - began)

        monkeypatch.setattr(ModuleLoader, "_compile", measure)
        began = time.monotonic()
        result = run(alone, large, timeout=15)
        assert result.queued >= seconds[0] > 0.01
        assert result.queued + result.duration <= time.monotonic() - began


@contextmanager
def only_so_many_descriptors(left: int) -> Iterator[None]:
    """Sets the limit so that `left` descriptor numbers are free, and keeps Warmcell from raising it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    limit, free = 0, 0
    while free < left:
        free += limit not in taken
        limit += 1
    raised = descriptors.raise_limit
    descriptors.raise_limit = descriptor_pressure.raise_limit = lambda: False  # as where the hard limit is as low
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, 3), hard))
    try:
        with (
            mock.patch("warmcell.lifetime.descriptors.raise_limit", lambda: False),
            mock.patch("warmcell.lifetime.descriptor_pressure.raise_limit", lambda: False),
        ):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        descriptors.raise_limit = descriptor_pressure.raise_limit = raised


@pytest.mark.attack("S2-27")
class TestDescriptors:
    def _survives(self, backend: WasmBackend, left: int) -> bool:
        """Whether a run succeeded with so few descriptors; a failure must be a typed host error."""
        with only_so_many_descriptors(left):
            try:
                return run(backend).stdout == "hello\n"
            except SandboxError as error:
                assert error.fault == "host", error
                return False

    def test_every_step_that_runs_out_is_a_typed_error_and_leaks_nothing(
        self, tmp_path: Path, no_workers: WorkerPool
    ) -> None:
        with WasmBackend(cache_dir=tmp_path / "cache") as backend:
            run(backend)
            no_workers.close()
            before = _own_state()
            left = 0
            while not self._survives(backend, left):
                no_workers.close()
                assert _is_no_more_than(before), f"with {left} descriptors"
                left += 1
            assert left > 5
            no_workers.close()
            assert run(backend).stdout == "hello\n"

    def test_a_module_that_must_be_compiled_leaks_nothing_either(self, tmp_path: Path, no_workers: WorkerPool) -> None:
        before = _own_state()
        with WasmBackend(cache_dir=tmp_path / "cache") as backend:
            run(backend)
            for left in range(4):
                with only_so_many_descriptors(left):
                    try:
                        run(backend, guests.prints(f"with {left}\n"))
                    except SandboxError as error:
                        assert error.fault == "host", error
        no_workers.close()
        assert _is_no_more_than(before)


def _is_no_more_than(before: tuple[list[str], list[str]]) -> bool:
    """Fewer is fine: descriptor pressure makes other parts release what they keep for later."""
    now = _own_state()
    return all(len(ours) <= len(theirs) for ours, theirs in zip(now, before, strict=True))


def _own_state() -> tuple[list[str], list[str]]:
    """Descriptors, and child processes other than the workers' zygotes."""
    own = Path("/proc/self/task") / str(threading.get_native_id()) / "children"
    return sorted(os.listdir("/proc/self/fd")), sorted(own.read_text().split())[1:]
