"""The module `sandbox`: fetch and exec of toolbox guests, and what a hostile guest may pass to them."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import PATIENCE
from tests.wasm import guests
from tests.wasm.conftest import run_once, take_limits
from tests.wasm.host_calls import CALLS, asks, own

from warmcell.backends.wasm.module_loader import ModuleCache, ModuleLoader
from warmcell.backends.wasm.pool import WorkerPool, WorkerUnusable
from warmcell.backends.wasm.run_request import ModuleSource, RunRequest, source_from_code
from warmcell.backends.wasm.supervisor import Supervisor
from warmcell.core.errors import BackendUnavailable, ExecutionTimeout, FuelExhausted, InvalidRequest, NetworkingDisabled
from warmcell.core.types import MIB, ExecResult
from warmcell.guest.wasm.protocol import RunLimits


def returns(expression: str) -> str:
    return f"""(module {CALLS} (memory (export "memory") 1)
      (func (export "run") (result i32) (i32.add {expression} (i32.const 10))))"""


INNER = own(
    f"""(module {guests.READ} {guests.WRITE} {CALLS} (memory (export "memory") 2) {guests.PRINT}
    (func (export "run") (result i32)
      (i32.store (i32.const 16) (i32.const 65536)) (i32.store (i32.const 20) (i32.const 1000))
      (drop (call $fd_read (i32.const 0) (i32.const 16) (i32.const 1) (i32.const 24)))
      (call $print (i32.const 1) (i32.const 65536) (i32.load (i32.const 24)))
      (call $print (i32.const 2) (i32.const 65536) (i32.load (i32.const 24))) (i32.const 5)))"""
)
FLOOD = own(guests.floods(1, 100).replace('(export "_start")', '(export "run")'))
LOOP = own(guests.LOOP.replace("_start", "run"))
TRAP = own(guests.TRAP.replace("_start", "run"))
GREEDY = own(guests.GROW_THEN_TRAP.replace("_start", "run"))
HUNGRY = own('(module (memory 500) (func (export "run")))')
AGAIN = own(asks("exec", {"argv": ["again"]}))
COMMANDS = {
    "inner": INNER,
    "flood": FLOOD,
    "loop": LOOP,
    "trap": TRAP,
    "greedy": GREEDY,
    "again": AGAIN,
    "hungry": HUNGRY,
}
Ask = Callable[..., ExecResult]


@pytest.fixture
def ask(supervisor: Supervisor) -> Ask:
    def ask(
        wat: str, *, fetch: Callable[[bytes], bytes] | None = None, timeout: float = 20, **fields: Any
    ) -> ExecResult:
        limits = take_limits(fields, timeout=timeout, memory_limit_mb=64)
        request = RunRequest(("guest",), limits, fetch=fetch, **fields)
        return run_once(supervisor, own(wat), request, commands=COMMANDS.get)

    return ask


def _response(result: ExecResult) -> dict[str, object]:
    assert result.exit_code == 10, result
    return dict(json.loads(result.stdout))


def test_fetch_goes_to_the_host_and_back(ask: Ask) -> None:
    seen: list[bytes] = []

    def fetch(raw: bytes) -> bytes:
        seen.append(raw)
        return b'{"status":200}' + b" " * 500_000

    result = ask(asks("fetch", {"url": "https://example.org/"}), fetch=fetch)
    assert json.loads(seen[0]) == {"url": "https://example.org/"}
    assert _response(result) == {"status": 200}
    assert len(result.stdout) == 500_014


def test_without_fetch_the_response_says_how_to_enable_it(ask: Ask) -> None:
    result = ask(asks("fetch", {"url": "https://example.org/"}))
    assert result.exit_code == 8
    assert "FetchPolicy" in json.loads(result.stdout)["error"]["message"]


def test_an_error_of_fetch_is_a_response(ask: Ask) -> None:
    def refuse(_raw: bytes) -> bytes:
        raise NetworkingDisabled

    def broken(_raw: bytes) -> bytes:
        raise ZeroDivisionError("a secret of the host")

    assert _response(ask(asks("fetch", {"url": "x"}), fetch=refuse))["error"]["code"] == "sandbox.networking_disabled"  # type: ignore[index]
    assert "secret" not in ask(asks("fetch", {"url": "x"}), fetch=broken).stdout


def test_a_fetch_that_hangs_does_not_outlive_the_deadline(ask: Ask) -> None:
    release = threading.Event()

    def hang(_raw: bytes) -> bytes:
        release.wait(300)
        return b"{}"

    started = time.monotonic()
    with pytest.raises(ExecutionTimeout):
        ask(asks("fetch", {"url": "x"}), fetch=hang, timeout=0.5)
    release.set()
    assert time.monotonic() - started < PATIENCE


@pytest.mark.parametrize("what", ["fetch", "exec"])
@pytest.mark.parametrize(
    "raw", [b"{", b"[]", b"1", b"\xff", b"null", b"[" * 100_000], ids=["cut", "list", "number", "bytes", "null", "deep"]
)
def test_a_request_that_is_not_a_json_object_is_malformed(ask: Ask, what: str, raw: bytes) -> None:
    assert ask(asks(what, raw), fetch=lambda _raw: b"{}").exit_code == 9


@pytest.mark.parametrize("what", ["fetch", "exec"])
@pytest.mark.parametrize(
    ("pointer", "length"),
    [(-1, 5), (0, -1), (65535, 2), (0, 65537), (-2147483648, 1), (2147483647, 2147483647), (0, 0), (0, 2147483647)],
)
def test_pointers_out_of_memory_are_malformed(ask: Ask, what: str, pointer: int, length: int) -> None:
    call = f"(call ${what} (i32.const {pointer}) (i32.const {length}))"
    assert ask(returns(call), fetch=lambda _raw: b"{}").exit_code == 9
    read = f"(call ${what}_read (i32.const {pointer}) (i32.const {length}))"
    assert ask(returns(read), fetch=lambda _raw: b"{}").exit_code == 9
    assert ask(returns(f"(call ${what}_len)"), fetch=lambda _raw: b"{}").exit_code == 9


def test_a_response_is_not_written_outside_of_memory(ask: Ask) -> None:
    request = "".join(f"\\{byte:02x}" for byte in b"{}")
    wat = f"""(module {CALLS} (memory (export "memory") 1) (data (i32.const 0) "{request}")
      (func (export "run") (result i32)
        (drop (call $fetch (i32.const 0) (i32.const 2)))
        (i32.add (call $fetch_read (i32.const 65530) (i32.const 100)) (i32.const 10))))"""
    assert ask(wat, fetch=lambda _raw: b"x" * 100).exit_code == 9


def test_exec_runs_another_module_with_separate_streams(ask: Ask) -> None:
    stdin = base64.b64encode(b"to the inner one").decode()
    response = _response(ask(asks("exec", {"argv": ["inner", "x"], "cwd": "/", "env": {"A": "b"}, "stdin": stdin})))
    assert response["exit_code"] == 5
    assert base64.b64decode(str(response["stdout"])) == b"to the inner one"
    assert base64.b64decode(str(response["stderr"])) == b"to the inner one"


def test_exec_of_an_unknown_command_is_an_error(ask: Ask) -> None:
    response = _response(ask(asks("exec", {"argv": ["nosuch"]})))
    assert response["error"]["code"] == "command_not_found"  # type: ignore[index]


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"argv": []},
        {"argv": "sh"},
        {"argv": [1]},
        {"argv": ["inner", "a\0b"]},
        {"argv": ["inner", "\ud800"]},
        {"argv": ["inner"], "env": []},
        {"argv": ["inner"], "env": {"A": 1}},
        {"argv": ["inner"], "env": {"A": "x\0y"}},
        {"argv": ["inner"], "cwd": 3},
        {"argv": ["inner"], "stdin": "***"},
        {"argv": ["inner"], "stdin": ["x"]},
    ],
)
def test_malformed_exec_requests(ask: Ask, request_: dict[str, object]) -> None:
    assert ask(asks("exec", request_)).exit_code == 9


def test_output_of_an_inner_run_is_bounded(ask: Ask) -> None:
    only_the_end = "(i32.add (i32.const 65336) (local.get $size)) (i32.const 200)"
    wat = asks("exec", {"argv": ["flood"]}).replace("(i32.const 65536) (local.get $size))))", f"{only_the_end})))")
    note, _, marks = ask(wat, output_bytes=1 << 20).stdout.partition('"stderr":"')[2].partition('"')
    assert marks == ',"stdout_truncated":true}'
    assert base64.b64decode(note) == b"output limit exceeded: the rest was left out\n"


def test_an_inner_run_shares_the_deadline(ask: Ask) -> None:
    started = time.monotonic()
    with pytest.raises(ExecutionTimeout):
        ask(asks("exec", {"argv": ["loop"]}), timeout=1)
    assert time.monotonic() - started < PATIENCE


def test_an_inner_run_shares_the_fuel(ask: Ask) -> None:
    with pytest.raises(FuelExhausted):
        ask(asks("exec", {"argv": ["loop"]}), fuel=10_000_000)


def test_an_inner_run_shares_the_memory(ask: Ask) -> None:
    response = _response(ask(asks("exec", {"argv": ["greedy"]})))
    assert response["exit_code"] == 137


def test_a_nested_run_gets_only_the_memory_that_is_left(ask: Ask) -> None:
    request = asks("exec", {"argv": ["hungry"]})
    assert _response(ask(request))["exit_code"] == 0
    assert (
        _response(ask(request.replace('(memory (export "memory") 40)', '(memory (export "memory") 600)')))["exit_code"]
        == 137
    )


def test_a_trap_of_an_inner_run_is_its_exit(ask: Ask) -> None:
    response = _response(ask(asks("exec", {"argv": ["trap"]})))
    assert response["exit_code"] == 1
    assert b"unreachable" in base64.b64decode(str(response["stderr"]))


def test_runs_are_nested_only_so_deep(ask: Ask) -> None:
    text = ask(asks("exec", {"argv": ["again"]})).stdout
    depth = 0
    while "stdout" in (response := json.loads(text)):
        text = base64.b64decode(response["stdout"]).decode()
        depth += 1
    assert response["error"]["code"] == "too_deep"
    assert depth == 2


def test_exec_works_where_one_worker_is_all_there_is(empty_cache: Path) -> None:
    supervisor = Supervisor(cache=ModuleCache(empty_cache), pool=WorkerPool(1))
    try:
        result = run_once(
            supervisor,
            own(asks("exec", {"argv": ["inner"]})),
            RunRequest(("x",), RunLimits(20, 64 * MIB)),
            commands=COMMANDS.get,
        )
        assert _response(result)["exit_code"] == 5
    finally:
        supervisor.close()


def test_a_worker_that_dies_while_it_prepares_a_command_does_not_repeat_the_run(
    empty_cache: Path, no_workers: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guest has already run, and would do everything twice."""
    asked: list[str] = []

    def die(*_: object) -> None:
        raise WorkerUnusable

    def find(name: str) -> ModuleSource | None:
        asked.append(name)
        return COMMANDS.get(name)

    monkeypatch.setattr(ModuleLoader, "prepare_own", die)
    supervisor = Supervisor(cache=ModuleCache(empty_cache))
    try:
        request = RunRequest(("x",), RunLimits(20, 64 * MIB))
        result = run_once(supervisor, own(asks("exec", {"argv": ["inner"]})), request, commands=find)
        assert _response(result)["exit_code"] == 5
        assert asked == ["inner"]
    finally:
        supervisor.close()


def test_an_unavailable_command_gives_the_reason(supervisor: Supervisor) -> None:
    def commands(_name: str) -> ModuleSource:
        raise BackendUnavailable("it is an extra", hint="pip install it")

    result = run_once(
        supervisor, own(asks("exec", {"argv": ["x"]})), RunRequest(("x",), RunLimits(20, 64 * MIB)), commands=commands
    )
    assert "pip install it" in result.stdout


def test_a_command_that_could_not_be_built_has_not_used_the_guests_time(supervisor: Supervisor) -> None:
    def fail(_name: str) -> ModuleSource:
        time.sleep(3.2)
        raise BackendUnavailable("its build failed", hint="pip install it")

    request = RunRequest(("x",), RunLimits(3, 64 * MIB))
    assert "pip install it" in run_once(supervisor, own(asks("exec", {"argv": ["x"]})), request, commands=fail).stdout


def test_commands_that_cannot_be_built_do_not_prolong_a_run_without_end(supervisor: Supervisor) -> None:
    attempts: list[str] = []

    def fail(name: str) -> ModuleSource:
        attempts.append(name)
        assert len(attempts) < 50, "the run does not end"
        time.sleep(0.4)
        raise BackendUnavailable("its build failed", hint="pip install it")

    raw = json.dumps({"argv": ["x"]})
    data = "".join(f"\\{byte:02x}" for byte in raw.encode())
    wat = f"""(module {CALLS} (memory (export "memory") 1) (data (i32.const 1024) "{data}")
      (func (export "run") (result i32)
        (loop $more (drop (call $exec (i32.const 1024) (i32.const {len(raw)}))) (br $more)) (i32.const 0)))"""
    with pytest.raises(ExecutionTimeout):
        run_once(supervisor, own(wat), RunRequest(("x",), RunLimits(1, 64 * MIB)), commands=fail)
    assert attempts


def test_preparing_a_command_is_not_the_guests_time(empty_cache: Path) -> None:
    seconds = {"inner": 3.2, "loop": 1.2}

    def slow(name: str) -> ModuleSource | None:
        time.sleep(seconds[name])
        return COMMANDS.get(name)

    # The first has time for a host that gives it no processor for a while.
    request, short = (RunRequest(("x",), RunLimits(limit, 64 * MIB)) for limit in (3, 1))
    supervisor = Supervisor(cache=ModuleCache(empty_cache))
    try:
        result = run_once(supervisor, own(asks("exec", {"argv": ["inner"]})), request, commands=slow)
        assert _response(result)["exit_code"] == 5
        with pytest.raises(ExecutionTimeout):
            run_once(supervisor, own(asks("exec", {"argv": ["loop"]})), short, commands=slow)
    finally:
        supervisor.close()


def test_exec_is_off_for_runs_without_commands(supervisor: Supervisor) -> None:
    request = RunRequest(("guest",), RunLimits(20, 64 * MIB))
    assert run_once(supervisor, own(asks("exec", {"argv": ["inner"]})), request).exit_code == 8


def test_guests_of_callers_have_no_host_calls(supervisor: Supervisor) -> None:
    wat = (
        asks("exec", {"argv": ["inner"]})
        .replace('(export "run") (result i32)', '(export "_start")')
        .replace("(i32.add (local.get $code) (i32.const 10))", "")
    )
    with pytest.raises(InvalidRequest, match="sandbox"):
        run_once(supervisor, source_from_code(wat), RunRequest(("guest",), RunLimits(20, 64 * MIB)))
