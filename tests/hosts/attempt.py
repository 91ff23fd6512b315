"""A program that tries every interface on the present host and prints the outcomes as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from warmcell import ExecRequest, ProcessBackend, Sandbox, SandboxError, WasmBackend
from warmcell.diagnosis import doctor as diagnosis
from warmcell.interfaces.cli import main as command_line
from warmcell.languages import registry

MODULE = """(module (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1) (data (i32.const 8) "42\\n")
  (func (export "_start") (i32.store (i32.const 0) (i32.const 8)) (i32.store (i32.const 4) (i32.const 3))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 20)))))"""


def process() -> list[Any]:
    """Two runs, and the descriptors that the second left open."""
    open_before = 0
    for _ in range(2):
        open_before = open_descriptors()
        with ProcessBackend() as backend:
            result = backend.execute_blocking(ExecRequest("python", "print(6 * 7)", 60))
    return [result.stdout, result.stderr, result.enforced.enforcer, open_descriptors() - open_before]


def open_descriptors() -> int:
    return sum(_is_open(number) for number in range(256))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def wasm() -> list[Any]:
    with WasmBackend() as backend:
        result = backend.execute_blocking(ExecRequest("wasm", MODULE, 60))
        return [result.stdout, result.stderr, backend.capabilities().isolation_class, 0]


def sandbox() -> list[Any]:
    with Sandbox(backend="wasm") as box:
        result = box.sh("echo 42")
    return [result.stdout, result.stderr, "wasm", 0]


def command() -> list[Any]:
    """The output of `warmcell run --json`."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        command_line(["run", "--json", "python", "-c", "print(6 * 7)"])
    answer = json.loads(said.getvalue())
    if answer["status"] == "error":
        error = answer["error"]
        return ["error", "", error["fault"], error["message"], error["hint"] or ""]
    return [answer["stdout"], answer["stderr"], "", 0]


def doctor() -> list[Any]:
    """One attack and no toolchains: the others depend on guests and languages, not on the host."""
    diagnosis.ATTACKS = diagnosis.ATTACKS[:1]
    registry.all_rows = lambda: ()
    report = diagnosis.examine()
    rows = {row.name: [row.status, row.proof, row.remedy or ""] for row in report.rows}
    return [report.default_available, rows["native cage"]]


def outcome(door: Callable[[], list[Any]]) -> list[Any]:
    try:
        return door()
    except SandboxError as error:
        return ["error", type(error).__name__, error.fault, error.message, error.hint or ""]
    except BaseException as error:
        return ["raw", type(error).__name__, "", str(error), ""]


if __name__ == "__main__":
    print(json.dumps({name: outcome(globals()[name]) for name in sys.argv[1:]}))
