"""Spare workers: a new sandbox gets one, with exactly its own directories mounted."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import PATIENCE, require, until
from tests.wasm.conftest import FailingListener

from warmcell import MountPoint, Sandbox
from warmcell.backends.wasm import caged_launcher
from warmcell.backends.wasm import pool as pool_module
from warmcell.backends.wasm.caged_launcher import CagedLauncher
from warmcell.backends.wasm.launcher import worker_launcher
from warmcell.backends.wasm.pool import WorkerPool
from warmcell.backends.wasm.worker_handle import USUAL_SLOTS, WorkerHandle
from warmcell.core.errors import ExecutionFailed, SandboxError
from warmcell.lifetime.run import Run
from warmcell.pool.shared_zygotes import SharedZygotes
from warmcell.runner.cell import Cell
from warmcell.toolbox.runtime import wasmtime_directory


@pytest.fixture
def pool(no_workers: WorkerPool) -> Iterator[WorkerPool]:
    require(worker_launcher().is_confining, "workers are not confined here")
    yield no_workers
    no_workers.close()


def spare_of(pool: WorkerPool) -> WorkerHandle:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for worker in pool.ready():
            if worker.is_spare:
                return worker
        time.sleep(0.02)
    raise AssertionError("no spare worker was made")


def mounts_of(worker: WorkerHandle) -> dict[str, str]:
    """The worker's mounts below /mnt: options by path."""
    lines = Path(f"/proc/{worker.pid}/mountinfo").read_text().splitlines()
    fields = [line.split(" ") for line in lines]
    return {item[4]: item[5] for item in fields if item[4].startswith("/mnt/")}


def test_a_new_sandbox_gets_the_spare_worker(pool: WorkerPool, tmp_path: Path) -> None:
    with Sandbox(backend="wasm") as first:
        first.sh("true")
        spare = spare_of(pool)
        assert mounts_of(spare) == {}
        with Sandbox(backend="wasm") as second:
            second.write_file("file", "second's own")
            result = second.sh("cat file; echo written > here")
            assert result.stdout == "second's own"
            assert second.read_file("here") == b"written\n"
            assert spare.mounts and not spare.is_spare
            assert {place.rpartition("/")[0] for place in mounts_of(spare)} == {"/mnt/write"}
            # The guest's change is visible in the second sandbox only.
            assert first.sh("ls").stdout == ""
        assert spare.pid not in pool.pids


def test_it_is_never_shown_anything_else(pool: WorkerPool, tmp_path: Path) -> None:
    with Sandbox(backend="wasm") as first, Sandbox(backend="wasm") as second:
        for sandbox in (first, second, first, second):
            assert sandbox.sh("pwd").stdout == "/work\n"
        shown = [worker.mounts for worker in pool.ready() if worker.mounts]
        assert len(shown) == len(set(shown)) == 2


def test_read_only_directories_stay_so_outside_of_the_runtime_too(pool: WorkerPool, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("x")
    with Sandbox(backend="wasm", mounts=[MountPoint(str(tmp_path), "/given")]) as sandbox:
        assert sandbox.sh("cat /given/given; echo y > /given/new").stdout == "x"
        (worker,) = [worker for worker in pool.ready() if worker.mounts]
        options = {place: text.split(",") for place, text in mounts_of(worker).items()}
        assert "ro" in options["/mnt/read/0"]
        assert all("nosuid" in words and "nodev" in words for words in options.values())
    assert not (tmp_path / "new").exists()


def test_more_directories_than_usual(pool: WorkerPool, tmp_path: Path) -> None:
    mounts = []
    for number in range(USUAL_SLOTS + 3):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "name").write_text(f"{number} ")
        mounts.append(MountPoint(str(directory), f"/m{number}", writable=number % 2 == 0))
    mounts += [MountPoint(str(tmp_path), f"/again{number}") for number in range(USUAL_SLOTS)]
    with Sandbox(backend="wasm", mounts=mounts) as sandbox:
        names = " ".join(f"/m{number}/name" for number in range(USUAL_SLOTS + 3))
        assert sandbox.sh(f"cat {names}").stdout == "".join(f"{number} " for number in range(USUAL_SLOTS + 3))
        assert sandbox.sh("echo w > /m2/name; cat /m2/name; echo w > /m1/name").exit_code != 0
    assert (tmp_path / "1" / "name").read_text() == "1 "
    assert (tmp_path / "2" / "name").read_text() == "w\n"


def test_a_directory_that_was_swapped_is_not_shown(pool: WorkerPool, tmp_path: Path) -> None:
    from warmcell.backends.wasm.run_request import Preopen, resolve_preopens

    (tmp_path / "work").mkdir()
    (directory,) = resolve_preopens([Preopen(tmp_path / "work", "/work", True)], {})
    (tmp_path / "work").rename(tmp_path / "was work")
    (tmp_path / "work").mkdir()
    worker = WorkerHandle(Run())
    try:
        worker.start(Run())
        with pytest.raises(SandboxError, match="was replaced after"):
            worker.mount((directory,))
        assert mounts_of(worker) == {}
    finally:
        worker.dispose()


def test_the_last_sandbox_leaves_at_most_the_spare_which_ends_with_the_program(pool: WorkerPool) -> None:
    with Sandbox(backend="wasm") as sandbox:
        sandbox.sh("true")
        spare = spare_of(pool)
    assert pool.pids == [spare.pid]
    pool.close()
    assert pool.pids == []


def test_closing_ends_a_worker_that_is_still_starting(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its cage would delay the exit of a program by seconds."""
    monkeypatch.setattr(pool_module, "_SPARE_DELAY_SECONDS", 0.0)
    with Sandbox(backend="wasm") as sandbox:
        sandbox.sh("true")
        until(lambda: pool.is_making or any(worker.is_spare for worker in pool.ready()))
    pool.close()
    assert pool.maker is None and pool.pids == []


def test_a_program_that_runs_one_command_and_ends_makes_no_spare(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_SPARE_DELAY_SECONDS", PATIENCE)  # a loaded host may need longer than usual
    with Sandbox(backend="wasm") as sandbox:
        sandbox.sh("true")
        worker = pool.pids
    pool.close()
    assert len(worker) == 1 and pool.maker is None and pool.pids == []


def test_writes_to_a_mounted_directory_are_watched(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's total disk limit, made small: many files, each within the per-file limit."""
    from dataclasses import replace

    monkeypatch.setattr(caged_launcher, "WORKER_LIMITS", replace(caged_launcher.WORKER_LIMITS, disk_mb=8))
    with Sandbox(tmp_path, backend="wasm", timeout=60) as sandbox:
        with pytest.raises(ExecutionFailed, match="worker died"):
            sandbox.sh("for i in $(seq 1 12); do head -c 2000000 /dev/zero > f$i; done; sleep 30")
        assert sandbox.sh("echo still here").stdout == "still here\n"


def test_a_worker_started_ahead_takes_the_first_run(pool: WorkerPool) -> None:
    pool.start_ahead()
    (ahead,) = pool.ready()
    assert not ahead.is_started and pool.pids == []  # not awaited yet
    with Sandbox(backend="wasm") as sandbox:
        assert sandbox.sh("echo hi").stdout == "hi\n"
        assert ahead.pid in pool.pids
    pool.start_ahead()
    pool.close()  # while it is still loading
    assert pool.pids == []


def test_a_starting_worker_keeps_its_zygote_alive(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disposing of the last worker meanwhile must not end the zygote. A launch that fails keeps none."""
    monkeypatch.setattr(caged_launcher, "shared_zygotes", SharedZygotes())
    caged = CagedLauncher()
    begin = Cell.send_job

    def begin_while_another_ends(cell: Cell, *words: Any) -> None:
        begin(cell, *words)
        caged.release_idle()

    ours, theirs = socket.socketpair()
    waiting = [os.path.dirname(wasmtime_directory())]
    with ours, theirs, monkeypatch.context() as patched:
        patched.setattr(Cell, "send_job", begin_while_another_ends)
        process = caged.launch(waiting, theirs.fileno(), [], 1, Run())
        process.start(Run())
        assert not process._cell.await_end(0.3)
        caged.release_idle()
        (share,) = process._shares
        assert share.pids and not caged._kept
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
        assert not share.pids
        patched.setattr(Cell, "send_job", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            caged.launch(waiting, theirs.fileno(), [], 1, Run()).start(Run())
    (share,) = caged._kept
    assert share.pids and share.users == 1
    caged.release_idle()
    assert not share.pids and not caged._kept


def test_a_worker_that_fails_to_load_reports_the_reason(pool: WorkerPool, tmp_path: Path) -> None:
    caged = CagedLauncher()
    ours, theirs = socket.socketpair()
    why = "not load worker: ModuleNotFoundError: No module named 'wasmtime'"
    with ours, theirs, pytest.raises(SandboxError, match=why):
        caged.launch([str(tmp_path)], theirs.fileno(), [], 1, Run())
    assert not caged._kept


def test_a_worker_that_was_never_awaited_can_be_disposed_of(pool: WorkerPool) -> None:
    worker = WorkerHandle(Run())
    worker.kill()
    assert worker.dispose() == -signal.SIGKILL and not worker.is_started
    killed = WorkerHandle(Run())
    killed.kill()  # before its process exists
    killed.start(Run())
    assert killed.dispose() == -signal.SIGKILL


def test_a_worker_whose_listener_fails_leaves_no_descriptor(pool: WorkerPool) -> None:
    worker = WorkerHandle(Run())
    worker.start_streams(100, FailingListener())
    Path(f"/proc/self/fd/{worker.outputs[0]}").write_bytes(b"x")  # as a guest that was still writing
    with pytest.raises(ZeroDivisionError):
        worker.dispose()
    assert not any(output in worker._descriptors for output in worker.outputs)
    assert worker.dispose() == -signal.SIGKILL


def test_many_sandboxes_find_their_own_workers_without_waiting_for_each_other(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking whether a worker is alive lets other threads run, and they would wait for the pool's lock."""
    with Sandbox(backend="wasm") as first, Sandbox(backend="wasm") as second:
        for sandbox in (first, second):
            assert sandbox.sh("echo 1").stdout == "1\n"
        before, is_waiting = set(pool.pids), WorkerHandle.is_waiting
        free: list[bool] = []

        def look() -> None:
            free.append(pool.lock.acquire(timeout=20))
            if free[-1]:
                pool.lock.release()

        def is_waiting_and_look(worker: WorkerHandle) -> bool:
            other = threading.Thread(target=look)  # the lock is reentrant
            other.start()
            other.join()
            return is_waiting(worker)

        monkeypatch.setattr(WorkerHandle, "is_waiting", is_waiting_and_look)
        for sandbox in (first, second, first):  # the worker of the last run is another one's
            assert sandbox.sh("echo 2").stdout == "2\n"
        assert free == [True] * 3 and set(pool.pids) >= before
        monkeypatch.undo()
        worker = pool.ready()[-1]
        os.kill(worker.pid, signal.SIGKILL)
        until(lambda: not worker.is_waiting())
        assert first.sh("echo 3").stdout == "3\n"
