"""The WA part of the attack catalogue. Everything is asserted from outside the guest."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.helpers import PATIENCE, until_async
from tests.wasm import guests
from tests.wasm.conftest import Run

from warmcell.backends.wasm import supervisor as wasm_supervisor
from warmcell.backends.wasm.backend import WasmBackend
from warmcell.backends.wasm.pool import WorkerPool
from warmcell.backends.wasm.worker_handle import WorkerHandle
from warmcell.core.errors import (
    ExecutionFailed,
    ExecutionTimeout,
    FuelExhausted,
    InvalidRequest,
    MemoryExceeded,
    SandboxError,
)
from warmcell.core.types import ExecRequest, Limits

HELLO = guests.prints("hello\n")


def _expect_timeout(run: Run, code: str, timeout: float = 1.0) -> float:
    started = time.monotonic()
    with pytest.raises(ExecutionTimeout) as caught:
        run(code, timeout)
    assert caught.value.timeout == timeout
    assert caught.value.result is not None
    return time.monotonic() - started


@pytest.mark.attack("WA-01")
@pytest.mark.parametrize("guest", ["LOOP", "HUGE_LOOP", "START_LOOP"])
def test_endless_code_ends_at_its_deadline(run: Run, guest: str) -> None:
    run(HELLO)  # a warm worker: the test is about the deadline, not about starting processes
    assert 0.7 <= _expect_timeout(run, getattr(guests, guest)) <= 10
    assert run(HELLO).stdout == "hello\n"


@pytest.mark.attack("WA-01")
def test_endless_code_is_interrupted_before_its_worker_has_to_be_killed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed worker could not report the guest's memory."""
    monkeypatch.setattr(wasm_supervisor, "GRACE_SECONDS", PATIENCE)  # a worker without a processor is late
    with pytest.raises(ExecutionTimeout) as caught:
        run(guests.body("(loop (br 0))", "(memory 3)"), 0.3)
    assert caught.value.result is not None
    assert caught.value.result.usage.peak_memory_bytes == 3 * 65536


@pytest.mark.attack("WA-02")
@pytest.mark.parametrize("clock", [0, 1])
def test_a_long_sleep_ends_at_the_deadline_and_leaves_no_thread(run: Run, clock: int) -> None:
    run(HELLO)
    threads = set(threading.enumerate())
    assert 0.7 <= _expect_timeout(run, guests.sleeps(60_000_000_000, clock)) <= 10
    assert set(threading.enumerate()) <= threads


@pytest.mark.attack("WA-02")
def test_a_short_sleep_is_slept(run: Run) -> None:
    assert run(guests.sleeps(50_000_000)).duration >= 0.045


@pytest.mark.attack("WA-04")
@pytest.mark.parametrize("code", [guests.GROW_THEN_TRAP, guests.BIG_GROW_THEN_TRAP], ids=["in steps", "at once"])
def test_a_guest_that_dies_of_refused_growth_exceeded_its_memory(run: Run, code: str) -> None:
    with pytest.raises(MemoryExceeded) as caught:
        run(code, memory_limit_mb=64)
    assert caught.value.limit_mb == 64
    assert caught.value.result is not None
    assert caught.value.result.usage.peak_memory_bytes <= 64 << 20


@pytest.mark.attack("WA-04", "S2-37")
def test_a_worker_over_its_memory_has_no_later_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guest may still run, and would write into the next result."""
    sizes = itertools.count(0, 1 << 40)
    monkeypatch.setattr(WorkerHandle, "anonymous_bytes", lambda _: next(sizes))
    with pytest.raises(MemoryExceeded):
        run(guests.floods(1, None))
    monkeypatch.undo()
    assert [run(HELLO).stdout for _ in range(3)] == ["hello\n"] * 3


@pytest.mark.attack("WA-04")
def test_initial_memory_over_the_limit_is_refused(run: Run) -> None:
    with pytest.raises(MemoryExceeded):
        run(guests.body("", "(memory 65536)"))


@pytest.mark.attack("WA-04")
def test_a_guest_that_handles_refused_growth_continues(run: Run) -> None:
    refused = "(if (i32.eq (memory.grow (i32.const 30000)) (i32.const -1)) (then (call $proc_exit (i32.const 7))))"
    assert run(guests.prints("", then=refused), memory_limit_mb=64).exit_code == 7


@pytest.mark.attack("WA-04")
def test_a_trap_for_another_reason_is_not_a_matter_of_memory(run: Run) -> None:
    grown = run(guests.body("(drop (memory.grow (i32.const 16))) unreachable", "(memory 1)"), memory_limit_mb=64)
    assert grown.exit_code == 1
    assert grown.usage.peak_memory_bytes == 17 * 65536
    own_maximum = run(guests.body("(drop (memory.grow (i32.const 16))) unreachable", "(memory 1 2)"))
    assert own_maximum.exit_code == 1


@pytest.mark.attack("WA-05")
def test_tables_are_bounded(run: Run) -> None:
    with pytest.raises(MemoryExceeded):
        run(guests.body("", "(table 10000000 funcref)"))
    with pytest.raises(SandboxError):
        run(guests.body("", "(table 10 funcref) " * 100))
    refused = (
        """(if (i32.ne (table.grow $t (ref.null func) (i32.const 100000000)) (i32.const -1)) (then unreachable))"""
    )
    assert run(guests.body(refused, "(table $t 1 funcref)")).exit_code == 0


@pytest.mark.attack("WA-08")
def test_deep_recursion_is_a_clean_trap(run: Run) -> None:
    result = run(guests.ENDLESS_RECURSION)
    assert result.exit_code == 1
    assert "call stack exhausted" in result.stderr
    assert result.signal is None


@pytest.mark.attack("WA-08")
@pytest.mark.parametrize(
    "code",
    [
        guests.body("(local " + "i64 " * 60_000 + ")"),
        guests.body("(block " * 10_000 + ")" * 10_000),
        guests.body("(local " + "i64 " * 50_000 + ") (local.set 49999 (i64.const 1))"),
    ],
    ids=["60k locals", "10k blocks", "50k locals"],
)
def test_extreme_shapes_are_compiled_or_refused_and_nothing_else(run: Run, backend: WasmBackend, code: str) -> None:
    before = set(backend.worker_pids())
    try:
        assert run(code, 60).exit_code in (0, 1)
    except InvalidRequest as error:
        assert error.field == "code"
    assert before <= set(backend.worker_pids())


def _compile_bomb(functions: int) -> str:
    heavy = "(local.set 0 (i64.mul (i64.add (local.get 0) (i64.const 3)) (i64.xor (local.get 0) (i64.const 7))))" * 400
    return "(module " + f"(func (local i64) {heavy})" * functions + '(func (export "_start")))'


@pytest.mark.attack("WA-09")
def test_compiling_counts_against_the_deadline(run: Run) -> None:
    bomb = _compile_bomb(200)  # nearly as large as code may be
    started = time.monotonic()
    with pytest.raises(ExecutionTimeout) as caught:
        run(bomb, 0.05)
    assert caught.value.phase == "build"
    assert time.monotonic() - started < PATIENCE
    assert run(HELLO).stdout == "hello\n"


@pytest.mark.attack("WA-09")
def test_modules_have_a_size_limit() -> None:
    with pytest.raises(InvalidRequest, match="larger than"):
        ExecRequest("wasm", b"\0asm\1\0\0\0" + bytes(12 << 20), 1)


@pytest.mark.attack("WA-09")
def test_compiling_has_a_memory_limit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmcell.backends.wasm.module_loader.COMPILE_MEMORY_MB", 16)
    with pytest.raises(MemoryExceeded) as caught:
        run(_compile_bomb(151), 60)
    assert caught.value.limit_mb == 16


@pytest.mark.attack("WA-11")
@pytest.mark.parametrize("stream", [1, 2])
def test_a_flood_is_capped_and_does_not_stall_the_guest(run: Run, stream: int) -> None:
    result = run(guests.floods(stream, 3200), 60)
    text, data, is_truncated = (
        (result.stdout, result.stdout_bytes, result.stdout_truncated)
        if stream == 1
        else (result.stderr, result.stderr_bytes, result.stderr_truncated)
    )
    assert result.exit_code == 0
    assert is_truncated
    assert data == b"x" * (1 << 20)
    assert text == data.decode()


@pytest.mark.attack("WA-11")
def test_an_endless_flood_ends_at_the_deadline_with_partial_output(run: Run) -> None:
    with pytest.raises(ExecutionTimeout) as caught:
        run(guests.floods(1, None), 2, limits=Limits(output_bytes=1000))
    assert caught.value.result is not None
    assert caught.value.result.stdout_bytes == b"x" * 1000


@pytest.mark.attack("WA-11")
def test_only_the_given_environment_and_a_fixed_argv_are_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.wasm.probe import Probe

    monkeypatch.setenv("WARMCELL_CANARY", "canary")
    probe = Probe()
    probe.call("environ_sizes_get", 1024, 1028)
    probe.call("environ_get", 1100, 1200)
    probe.call("args_sizes_get", 1032, 1036)
    probe.call("args_get", 1040, 1060)
    probe.dump(1024, 16)
    probe.dump(1200, 64)
    probe.dump(1060, 12)
    _, dumps = probe.decode(run(probe.wat(), env={"A": "1", "B": "two"}).stdout_bytes)
    assert dumps[0][:8] == (2).to_bytes(4, "little") + (10).to_bytes(4, "little")
    assert sorted(dumps[1].rstrip(b"\0").split(b"\0")) == [b"A=1", b"B=two"]
    assert dumps[2].rstrip(b"\0") == b"main.wasm"


@pytest.mark.attack("WA-15")
def test_a_store_is_never_used_twice(run: Run) -> None:
    counts = guests.prints(
        "0",
        then="""(i32.store8 (i32.const 64) (i32.add (i32.load8_u (i32.const 64)) (i32.const 1)))
        (call $print (i32.const 1) (i32.const 64) (i32.const 1)) unreachable""",
    )
    for _ in range(3):
        assert run(counts).stdout == "01"


@pytest.mark.attack("WA-15")
async def test_one_runs_timer_never_hits_another(backend: WasmBackend) -> None:
    async def short() -> None:
        with pytest.raises(ExecutionTimeout):
            await backend.execute(ExecRequest("wasm", guests.LOOP, 0.3))

    async def long() -> str:
        return (await backend.execute(ExecRequest("wasm", guests.sleeps(900_000_000), 20))).stderr

    results = await asyncio.gather(short(), long(), short(), long())
    assert [results[1], results[3]] == ["", ""]


@pytest.mark.attack("WA-15")
def test_a_late_timer_does_not_hit_the_next_run_of_the_same_worker(backend: WasmBackend, run: Run) -> None:
    run(HELLO)
    pids = backend.worker_pids()
    for _ in range(20):
        assert run(guests.sleeps(1_000_000), 2).exit_code == 0
    time.sleep(2.1)  # the deadline of the last run passes while the worker is idle
    assert run(guests.sleeps(100_000_000), 5).exit_code == 0
    assert backend.worker_pids() == pids


@pytest.mark.attack("WA-17")
@pytest.mark.parametrize("death", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
async def test_a_crash_of_the_runtime_costs_one_run(
    tmp_path: Path, no_workers: WorkerPool, death: signal.Signals, sent_runs: list[str]
) -> None:
    backend = WasmBackend(cache_dir=tmp_path / "cache")
    try:
        await backend.execute(ExecRequest("wasm", HELLO, 10))
        (victim,) = backend.worker_pids()
        doomed = asyncio.create_task(backend.execute(ExecRequest("wasm", guests.sleeps(60_000_000_000), 60)))
        await until_async(lambda: len(sent_runs) == 2)
        neighbour = asyncio.create_task(backend.execute(ExecRequest("wasm", guests.sleeps(600_000_000), 20)))
        await until_async(lambda: len(sent_runs) == 3)
        # wasmtime's handler ignores the first one, expecting the fault to recur.
        while not doomed.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, death)
            await asyncio.sleep(0.05)
        with pytest.raises(ExecutionFailed, match=str(int(death))):
            await doomed
        assert (await neighbour).exit_code == 0
        assert (await backend.execute(ExecRequest("wasm", HELLO, 10))).stdout == "hello\n"
        assert victim not in backend.worker_pids()
    finally:
        await backend.aclose()


@pytest.mark.attack("WA-18")
@pytest.mark.parametrize(
    ("code", "named"),
    [
        ('(module (import "env" "mystery" (func)) (func (export "_start")))', "mystery"),
        ('(module (import "wasi_snapshot_preview1" "nonsense" (func)) (func (export "_start")))', "nonsense"),
        (
            '(module (import "sandbox" "__sandbox_exec" (func (param i32 i32) (result i32))) (func (export "_start")))',
            "exec",
        ),
        ('(module (func (export "main")))', "_start"),
        ('(module (func (export "_start") (param i32)))', "_start"),
        ('(module (global (export "_start") i32 (i32.const 1)))', "_start"),
        ("(module (func (export", "WAT"),
        (b"\0asm\1\0\0\0\x01\x05", "invalid module"),
        (b"\x7fELF", "magic"),
        (b"\0asm\x0d\0\1\0", "component"),
        ('(module (memory 1 1 shared) (func (export "_start")))', "threads"),
        ('(module (memory i64 1) (func (export "_start")))', "memory64"),
        ('(module (memory 1) (memory 1) (func (export "_start")))', "memories"),
        ("print('hello')", "base64"),
    ],
)
def test_an_invalid_module_is_refused_with_the_reason(run: Run, code: str | bytes, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named) as caught:
        run(code)
    assert caught.value.field == "code"


@pytest.mark.attack("S3-06")
def test_names_in_a_refused_module_are_escaped(run: Run) -> None:
    with pytest.raises(InvalidRequest, match="unknown import") as caught:
        run('(module (import "\\1b[31m\\07" "f" (func)) (func (export "_start")))')
    assert str(caught.value).isprintable()


@pytest.mark.attack("WA-18")
@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, 0), (1, 1), (42, 42), (126, 126), (127, 127), (255, 255), (256, 255), (65536, 255), (-1, 255)],
)
def test_exit_codes_are_kept(run: Run, code: int, expected: int) -> None:
    assert run(guests.exits(code)).exit_code == expected


@pytest.mark.attack("WA-18")
def test_standard_input_ends(run: Run) -> None:
    assert run(guests.CAT).stdout == ""
    assert run(guests.CAT, stdin="some words").stdout == "some words"


@pytest.mark.attack("WA-01")
def test_fuel_and_time_are_different_errors(tmp_path: Path) -> None:
    backend = WasmBackend(fuel=1_000_000, cache_dir=tmp_path / "cache")
    try:
        with pytest.raises(FuelExhausted) as caught:
            backend.execute_blocking(ExecRequest("wasm", guests.LOOP, 20))
        assert caught.value.fuel == 1_000_000
        result = backend.execute_blocking(ExecRequest("wasm", HELLO, 20))
        assert result.stdout == "hello\n"
        assert result.enforced.cpu == "fuel"
    finally:
        backend.close()
