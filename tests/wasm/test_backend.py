"""WasmBackend as a backend: results, streams, concurrency, cancellation, closing, cleaning up."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import eventually, open_descriptors, require, until, until_async
from tests.wasm import guests
from tests.wasm.conftest import FailingListener, Run

from warmcell.backends.wasm import worker_handle
from warmcell.backends.wasm.backend import WasmBackend
from warmcell.backends.wasm.launcher import worker_launcher
from warmcell.backends.wasm.module_loader import ModuleLoader
from warmcell.backends.wasm.pool import WorkerPool, WorkerUnusable
from warmcell.backends.wasm.worker_handle import WorkerHandle
from warmcell.cage.environment import CHILD_MARK
from warmcell.core.contracts import SandboxBackend
from warmcell.core.errors import BackendUnavailable, ExecutionFailed, ExecutionTimeout, InvalidRequest, MemoryExceeded
from warmcell.core.output_events import OutputEvent, ResultEvent
from warmcell.core.types import ExecRequest, Language, Limits
from warmcell.pool.prestarted_manager import ENVIRONMENT

HELLO = guests.prints("hello\n")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _have_ended(pids: list[int]) -> bool:
    return eventually(lambda: not any(map(_is_alive, pids)))


def test_it_is_a_backend_with_capabilities(backend: WasmBackend) -> None:
    assert isinstance(backend, SandboxBackend)
    capabilities = backend.capabilities()
    assert capabilities.supported_languages == (Language.WASM,)
    assert (
        capabilities.isolation_class == backend.execute_blocking(ExecRequest("wasm", HELLO, 9)).enforced.isolation_class
    )


@pytest.mark.parametrize("form", ["text", "bytes", "base64", "text as bytes"])
def test_every_form_of_a_module_runs(run: Run, form: str) -> None:
    import base64

    import wasmtime

    binary = bytes(wasmtime.wat2wasm(HELLO))
    code = {
        "text": HELLO,
        "bytes": binary,
        "base64": base64.b64encode(binary).decode(),
        "text as bytes": HELLO.encode(),
    }
    assert run(code[form]).stdout == "hello\n"


def test_a_result_has_usage_and_enforced_limits(run: Run) -> None:
    result = run(guests.prints("out", then="(call $print (i32.const 2) (i32.const 64) (i32.const 3))"))
    assert (result.stdout, result.stderr, result.exit_code, result.signal) == ("out", "out", 0, None)
    assert result.usage.peak_memory_bytes == 2 * 65536
    assert result.usage.cpu_time > 0 and result.usage.wall_time > 0
    assert (result.enforced.timeout, result.enforced.memory) == ("epoch+kill", "wasmtime limits")
    assert result.enforced.network == "no sockets"


def test_a_worker_that_dies_before_it_builds_is_replaced(backend: WasmBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure, deaths = ModuleLoader.ensure, [WorkerUnusable()]

    def die_once(*words: Any) -> None:
        if deaths:
            raise deaths.pop()
        ensure(*words)

    monkeypatch.setattr(ModuleLoader, "ensure", die_once)
    backend.build_blocking(ExecRequest("wasm", HELLO, 20))
    assert not deaths
    deaths += [WorkerUnusable() for _ in range(3)]
    with pytest.raises(ExecutionFailed, match="died before"):
        backend.build_blocking(ExecRequest("wasm", HELLO, 20))


def test_a_trap_is_exit_1_with_its_message(run: Run) -> None:
    result = run(guests.prints("before", then="unreachable"))
    assert (result.exit_code, result.stdout) == (1, "before")
    assert result.stderr.startswith("wasm trap: wasm `unreachable` instruction executed")
    assert result.stderr.encode() == result.stderr_bytes


def test_a_listener_gets_the_message_of_a_trap(backend: WasmBackend) -> None:
    *pieces, last = backend.stream_blocking(ExecRequest("wasm", guests.prints("before", then="unreachable"), 20))
    assert isinstance(last, ResultEvent)
    heard = b"".join(piece.data for piece in pieces if isinstance(piece, OutputEvent) and piece.stream == "stderr")
    assert heard == last.result.stderr_bytes
    assert b"unreachable" in heard


def test_output_that_a_failed_listener_did_not_take_is_not_in_the_next_result(
    backend: WasmBackend, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_handle, "_FIRST_WAIT_MS", 20_000)  # all output is read after the exit report
    code = guests.prints("mine", then="(call $print (i32.const 2) (i32.const 64) (i32.const 4))")
    with pytest.raises(ZeroDivisionError):
        asyncio.run(backend.execute(ExecRequest("wasm", code, 20), listener=FailingListener()))
    assert [(each.stdout, each.stderr) for each in (run(code), run(code))] == [("mine", "mine")] * 2


def test_large_input_and_output_do_not_deadlock(run: Run) -> None:
    data = os.urandom(1 << 20) * 10
    result = run(guests.CAT, 60, stdin=data, limits=Limits(output_bytes=16 << 20))
    assert result.stdout_bytes == data
    assert not result.stdout_truncated


def test_a_guest_that_never_reads_its_input_ends(run: Run) -> None:
    assert run(HELLO, stdin=b"x" * (10 << 20)).stdout == "hello\n"


def test_output_is_cut_at_a_character(run: Run) -> None:
    result = run(guests.prints("añb"), limits=Limits(output_bytes=2))
    assert result.stdout_bytes == b"a"
    assert result.stdout_truncated
    assert result.stdout == "a"


def test_exactly_the_limit_is_not_truncated(run: Run) -> None:
    result = run(guests.floods(1, 16), 30)
    assert len(result.stdout_bytes) == 1 << 20
    assert not result.stdout_truncated


def test_bytes_that_are_not_text_are_kept(run: Run) -> None:
    result = run(guests.CAT, stdin=b"\xff\xfe!")
    assert result.stdout_bytes == b"\xff\xfe!"
    assert result.stdout == "��!"


def test_other_languages_are_refused(backend: WasmBackend) -> None:
    with pytest.raises(InvalidRequest, match="python") as caught:
        backend.execute_blocking(ExecRequest("python", "print(1)", 5))
    assert caught.value.field == "language"


def test_limits_of_the_backend_are_a_ceiling(tmp_path: Path) -> None:
    backend = WasmBackend(limits=Limits(memory_mb=1), cache_dir=tmp_path / "cache")
    try:
        with pytest.raises(MemoryExceeded) as caught:
            backend.execute_blocking(ExecRequest("wasm", guests.GROW_THEN_TRAP, 9, memory_limit_mb=512))
        assert caught.value.limit_mb == 1
    finally:
        backend.close()


def test_processor_time_is_bounded(run: Run) -> None:
    with pytest.raises(ExecutionTimeout) as caught:
        run(guests.LOOP, 20, limits=Limits(cpu_seconds=0.3))
    assert caught.value.timeout == 0.3


def test_a_run_that_ended_while_the_host_had_no_processor_did_not_time_out(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, cpu_seconds = 0.0, WorkerHandle.cpu_seconds

    def stand_still(worker: WorkerHandle) -> float:
        nonlocal lost
        until(lambda: worker.control_poll.poll(0))  # its answer has arrived
        lost += 100.0
        return cpu_seconds(worker)

    monkeypatch.setattr(worker_handle, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + lost))
    monkeypatch.setattr(WorkerHandle, "cpu_seconds", stand_still)
    assert run(guests.sleeps(100_000_000), 20).exit_code == 0
    assert lost


def test_a_worker_is_reused_after_a_clean_run_and_not_after_a_timeout(tmp_path: Path, no_workers: WorkerPool) -> None:
    backend = WasmBackend(cache_dir=tmp_path / "cache")
    try:
        for code in (HELLO, guests.TRAP, guests.exits(3), HELLO):
            backend.execute_blocking(ExecRequest("wasm", code, 9))
        (first,) = backend.worker_pids()
        with pytest.raises(ExecutionTimeout):
            backend.execute_blocking(ExecRequest("wasm", guests.LOOP, 0.2))
        assert _have_ended([first])
        assert backend.execute_blocking(ExecRequest("wasm", HELLO, 9)).stdout == "hello\n"
    finally:
        backend.close()


async def test_many_runs_at_once_do_not_mix(backend: WasmBackend) -> None:
    async def one(number: int) -> str:
        return (await backend.execute(ExecRequest("wasm", guests.CAT, 60, stdin=f"number {number}"))).stdout

    assert await asyncio.gather(*map(one, range(24))) == [f"number {number}" for number in range(24)]


async def test_runs_wait_where_all_workers_are_busy(tmp_path: Path, no_workers: WorkerPool) -> None:
    backend = WasmBackend(max_workers=2, cache_dir=tmp_path / "cache")
    try:
        endless, hello = ExecRequest("wasm", guests.sleeps(60_000_000_000), 60), ExecRequest("wasm", HELLO, 20)
        busy = [asyncio.create_task(backend.execute(endless)) for _ in range(2)]
        waiting = [asyncio.create_task(backend.execute(hello)) for _ in range(4)]
        await until_async(lambda: len(backend.worker_pids()) == 2)
        assert not any(task.done() for task in waiting)
        busy[0].cancel()
        assert [result.stdout for result in await asyncio.gather(*waiting)] == ["hello\n"] * 4
        assert not busy[1].done() and len(backend.worker_pids()) == 2
        busy[1].cancel()
        await asyncio.wait(busy)
    finally:
        await backend.aclose()


async def test_cancelling_kills_the_run(tmp_path: Path, no_workers: WorkerPool, sent_runs: list[str]) -> None:
    backend = WasmBackend(cache_dir=tmp_path / "cache")
    try:
        await backend.execute(ExecRequest("wasm", HELLO, 9))
        (worker,) = backend.worker_pids()
        for number, guest in enumerate((guests.LOOP, guests.sleeps(60_000_000_000), guests.floods(1, None)), 2):
            task = asyncio.create_task(backend.execute(ExecRequest("wasm", guest, 60)))
            await until_async(lambda number=number: len(sent_runs) == number)  # type: ignore[misc]
            await asyncio.sleep(0.1)  # usually it runs by then; it need not
            workers = backend.worker_pids()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert _have_ended(workers)
        assert worker not in backend.worker_pids()
        assert (await backend.execute(ExecRequest("wasm", HELLO, 9))).stdout == "hello\n"
    finally:
        await backend.aclose()


async def test_a_run_that_still_waits_for_a_worker_can_be_cancelled(tmp_path: Path, sent_runs: list[str]) -> None:
    backend = WasmBackend(max_workers=1, cache_dir=tmp_path / "cache")
    try:
        busy = asyncio.create_task(backend.execute(ExecRequest("wasm", guests.sleeps(3_000_000_000), 20)))
        await until_async(lambda: sent_runs)
        waiting = asyncio.create_task(backend.execute(ExecRequest("wasm", HELLO, 20)))
        await until_async(lambda: backend._runs._queue.waiting)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not busy.done()
        assert (await busy).exit_code == 0
    finally:
        await backend.aclose()


async def test_closing_ends_everything_and_may_be_repeated(tmp_path: Path, no_workers: WorkerPool) -> None:
    backend = WasmBackend(cache_dir=tmp_path / "cache")
    await backend.execute(ExecRequest("wasm", HELLO, 9))
    running = asyncio.create_task(backend.execute(ExecRequest("wasm", guests.LOOP, 60)))
    await asyncio.sleep(0.3)
    workers = backend.worker_pids()
    await backend.aclose()
    await backend.aclose()
    with pytest.raises(BackendUnavailable):
        await running
    with pytest.raises(BackendUnavailable):
        await backend.execute(ExecRequest("wasm", HELLO, 9))
    with pytest.raises(BackendUnavailable):
        backend.execute_blocking(ExecRequest("wasm", HELLO, 9))
    assert _have_ended(workers)


def test_no_descriptor_is_left(tmp_path: Path, no_workers: WorkerPool) -> None:
    before = open_descriptors()
    backend = WasmBackend(cache_dir=tmp_path / "cache")
    for code in (HELLO, guests.LOOP, guests.TRAP, HELLO):
        try:
            backend.execute_blocking(ExecRequest("wasm", code, 0.5))
        except ExecutionTimeout:
            continue
    backend.close()
    no_workers.close()
    assert eventually(lambda: open_descriptors() <= before)


def test_the_directories_of_past_runs_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run with files has its own, and a server makes millions of them."""
    monkeypatch.setattr("warmcell.backends.wasm.supervisor._MOST_MOUNTS", 2)
    with WasmBackend(cache_dir=tmp_path / "cache") as backend:
        for _ in range(4):
            assert backend.execute_blocking(ExecRequest("wasm", HELLO, 20, files={"f": b"x"})).stdout == "hello\n"
        assert len(backend._supervisor._mounts) == 2


def test_a_worker_with_the_files_of_a_run_ends_with_it(tmp_path: Path, no_workers: WorkerPool) -> None:
    """No later run can use it, and a server would keep hundreds of them."""
    require(worker_launcher().is_confining, "workers are not confined here")
    with WasmBackend(cache_dir=tmp_path / "cache") as backend:
        for code in (HELLO, guests.TRAP, HELLO):
            backend.execute_blocking(ExecRequest("wasm", code, 20, files={"f": b"x"}))
        assert backend.worker_pids() == []
        for _ in range(2):
            backend.execute_blocking(ExecRequest("wasm", HELLO, 20))
        assert len(backend.worker_pids()) == 1


def test_a_killed_supervisor_leaves_no_worker(tmp_path: Path) -> None:
    """The supervisor dies during an endless run; its worker notices and exits."""
    script = f"""
import sys, threading, time
from warmcell.backends.wasm.backend import WasmBackend
from warmcell.core.types import ExecRequest
backend = WasmBackend(cache_dir={str(tmp_path / "cache")!r})
run = lambda: backend.execute_blocking(ExecRequest("wasm", {guests.LOOP!r}, 60))
threading.Thread(target=run, daemon=True).start()
while not backend.worker_pids(): time.sleep(0.01)
time.sleep(0.5)
print(*backend.worker_pids(), flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pids = [int(word) for word in supervisor.stdout.readline().split()]
        assert pids and all(map(_is_alive, pids))
        supervisor.kill()
    assert _have_ended(pids)


def test_a_worker_inherits_nothing(no_workers: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMCELL_CANARY", "canary")
    with Path(os.devnull).open() as inherited:
        os.set_inheritable(inherited.fileno(), True)
        fresh = WasmBackend()
        try:
            fresh.execute_blocking(ExecRequest("wasm", HELLO, 9))
            (pid,) = fresh.worker_pids()
            given = "".join(
                f"{name}={value}\0" for name, value in ENVIRONMENT.items() if worker_launcher().is_confining
            )
            assert Path(f"/proc/{pid}/environ").read_bytes() == (given or f"{CHILD_MARK}=1\0").encode()
            links = [os.readlink(f"/proc/{pid}/fd/{item}") for item in os.listdir(f"/proc/{pid}/fd")]
            known = ("/dev/null", "pipe:", "socket:", "anon_inode:", "/memfd:", "/proc/")
            assert all(link.startswith(known) for link in links), links
            assert len(links) < 16
        finally:
            fresh.close()


def test_wasmtime_is_never_imported_here() -> None:
    code = "import sys, warmcell.backends.wasm.backend as m; m.WasmBackend().close(); print('wasmtime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_bad_arguments_are_refused() -> None:
    for bad in (0, -1, True, 1.5):
        with pytest.raises(InvalidRequest):
            WasmBackend(fuel=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        WasmBackend(max_workers=0)


async def test_it_is_a_context_manager_of_both_kinds(tmp_path: Path) -> None:
    request = ExecRequest("wasm", guests.prints("x"), 20)
    async with WasmBackend(cache_dir=tmp_path / "wasm") as backend:
        assert (await backend.execute(request)).stdout == "x"
    with pytest.raises(BackendUnavailable):
        await backend.execute(request)
