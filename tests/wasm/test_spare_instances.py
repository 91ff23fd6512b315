"""Instances made in advance: runs cannot notice, and nothing of an earlier run is left in them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import require, until
from tests.wasm.conftest import Run, run_once, take_limits
from tests.wasm.guests import EXIT, PRINT, WRITE

from warmcell.backends.wasm import launcher as launchers
from warmcell.backends.wasm import pool as pools
from warmcell.backends.wasm import worker_handle as workers
from warmcell.backends.wasm.launcher import PlainLauncher
from warmcell.backends.wasm.run_request import ModuleSource, Preopen, RunRequest, source_from_code
from warmcell.backends.wasm.supervisor import Supervisor
from warmcell.core.errors import MemoryExceeded
from warmcell.core.types import MIB, ExecResult
from warmcell.guest.wasm.binary import MEMORY_NAME
from warmcell.guest.wasm.protocol import RunLimits

#: Exits with the number of runs in this memory and with this global, and fills its memory.
COUNTER = f"""(module {EXIT} (memory (export "memory") 4) (global $runs (mut i32) (i32.const 0)) (data (i32.const 0) "\\00")
  (func (export "_start")
    (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
    (global.set $runs (i32.add (global.get $runs) (i32.const 1)))
    (memory.fill (i32.const 4096) (i32.const 7) (i32.const 65536))
    (call $proc_exit (i32.add (i32.mul (global.get $runs) (i32.const 10)) (i32.load (i32.const 0))))))"""
STARTS_ALONE = f"""(module {WRITE} (memory (export "memory") 1) (data (i32.const 64) "started\\n") {PRINT}
  (func $begin (call $print (i32.const 1) (i32.const 64) (i32.const 8))) (start $begin)
  (func (export "_start")))"""
#: Exits with 0 if it could grow to 64 MiB.
GROWS = f"""(module {EXIT} (memory (export "memory") 1)
  (func (export "_start")
    (if (i32.eq (memory.grow (i32.const 1023)) (i32.const -1)) (then unreachable))
    (call $proc_exit (i32.const 0))))"""
#: Exits with 1 if `fill_table` was called before it.
FILLS_ITS_TABLE = """(module (memory (export "memory") 1) (global $filled (mut i32) (i32.const 0))
  (func (export "fill_table") (global.set $filled (i32.const 1)))
  (func (export "_start") (result i32) (global.get $filled)))"""

#: Prints the name of its first directory.
NAMES_ITS_DIRECTORY = f"""(module {WRITE}
  (import "wasi_snapshot_preview1" "fd_prestat_get" (func $prestat (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_prestat_dir_name" (func $name (param i32 i32 i32) (result i32)))
  (memory (export "memory") 1) {PRINT}
  (func (export "_start")
    (drop (call $prestat (i32.const 3) (i32.const 128)))
    (drop (call $name (i32.const 3) (i32.const 256) (i32.load (i32.const 132))))
    (call $print (i32.const 1) (i32.const 256) (i32.load (i32.const 132)))))"""


def settle() -> None:
    """Gives a worker the time that it usually needs to make its next instance."""
    time.sleep(0.05)


def exit_codes(supervisor: Supervisor, source: ModuleSource) -> list[int]:
    found = []
    for _ in range(3):
        found.append(run_once(supervisor, source, RunRequest(("x",), RunLimits(20, 64 * MIB))).exit_code)
        settle()
    return found


def test_only_shipped_modules_fill_their_table_in_advance(supervisor: Supervisor) -> None:
    callers = source_from_code(FILLS_ITS_TABLE)
    own = ModuleSource("wat", FILLS_ITS_TABLE.encode, "own:fills-its-table", "_start", is_own=True)
    assert exit_codes(supervisor, callers) == [0, 0, 0]
    assert exit_codes(supervisor, own)[0] == 0
    until(lambda: exit_codes(supervisor, own) == [1, 1, 1])  # a worker may need longer than it was given


def test_every_run_starts_with_the_modules_memory_and_globals(run: Run) -> None:
    for _ in range(4):
        assert run(COUNTER).exit_code == 11
        settle()


def test_a_start_function_runs_once_for_each_run(run: Run) -> None:
    for _ in range(4):
        assert run(STARTS_ALONE).stdout == "started\n"
        settle()


def test_limits_are_those_of_the_run_and_not_of_the_one_before(run: Run) -> None:
    for _ in range(2):
        assert run(GROWS, memory_limit_mb=64).exit_code == 0
        settle()
        with pytest.raises(MemoryExceeded):
            run(GROWS, memory_limit_mb=32)
        settle()


def test_a_deadline_counts_from_the_run_and_not_from_its_instance(run: Run) -> None:
    assert run(COUNTER, timeout=2).exit_code == 11
    time.sleep(2.1)
    assert run(COUNTER, timeout=2).exit_code == 11


def test_arguments_and_input_are_those_of_the_run(supervisor: Supervisor) -> None:
    for word in ("one", "two", "three"):
        assert run_in(supervisor, COUNTER, env={"WORD": word}, stdin=word.encode()).exit_code == 11
        settle()


def test_when_a_run_has_returned_its_directories_are_closed(supervisor: Supervisor, tmp_path: Path) -> None:
    for _ in range(3):
        assert run_in(supervisor, COUNTER, preopens=[Preopen(tmp_path, "/work", True)]).exit_code == 11
        assert str(tmp_path) not in open_paths(supervisor)


def test_a_worker_without_a_cage_opens_no_directory_ahead(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (launchers, pools, workers):
        monkeypatch.setattr(module, "worker_launcher", PlainLauncher)
    pool = pools.WorkerPool()
    plain = Supervisor(supervisor._cache, pool)
    try:
        for _ in range(2):
            assert run_in(plain, COUNTER, preopens=[Preopen(tmp_path, "/work", True)]).exit_code == 11
            settle()
            assert str(tmp_path) not in open_paths(plain)
    finally:
        pool.close()


def test_directories_opened_in_advance_serve_only_equal_setups(supervisor: Supervisor, tmp_path: Path) -> None:
    places = [Preopen(tmp_path, "/work", True), Preopen(tmp_path, "/other", True), Preopen(tmp_path, "/work", False)]
    for place in (*places, *places):
        result = run_in(supervisor, NAMES_ITS_DIRECTORY, preopens=[place])
        assert result.stdout == place.guest_path
        settle()


def run_in(supervisor: Supervisor, code: str, **fields: Any) -> ExecResult:
    limits = take_limits(fields, timeout=10, memory_limit_mb=64)
    request = RunRequest(("main.wasm",), limits, **fields)
    return run_once(supervisor, source_from_code(code), request)


def open_paths(supervisor: Supervisor) -> set[str]:
    found = set()
    for pid in supervisor.pool.pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError as error:
            require(False, f"a worker's descriptors cannot be looked at here: {error}")
        for name in names:
            try:
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
            except FileNotFoundError:
                continue
    return found


def test_more_kinds_of_runs_than_a_worker_remembers(run: Run) -> None:
    for timeout in range(10, 80):  # each is a new spec for the worker
        assert run(COUNTER, timeout=timeout).exit_code == 11
    with pytest.raises(MemoryExceeded):
        run(GROWS, timeout=10, memory_limit_mb=32)
    assert run(GROWS, timeout=10, memory_limit_mb=64).exit_code == 0


@pytest.mark.parametrize("other", ["(func (export {}))", "(global (export {}) i32 (i32.const 1))"])
def test_a_module_may_export_anything_under_the_name_of_our_export(run: Run, other: str) -> None:
    name = f'"{MEMORY_NAME}"'
    for _ in range(2):
        assert run(f'(module (memory 1) {other.format(name)} (func (export "_start")))').exit_code == 0
        settle()
