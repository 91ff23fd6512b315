"""The steps of `programs.py` as source text: Python, WebAssembly text, and JSON for the script of the fake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from tests.contract.programs import (
    PAGE,
    Allocate,
    Burn,
    Copy,
    Dialect,
    Exit,
    Flood,
    Save,
    Say,
    ShowArguments,
    ShowEnvironment,
    ShowFile,
    Sleep,
    Spin,
    Step,
)

from warmcell import ExecRequest
from warmcell.backends.fake import FakeGuest


def in_python(steps: Sequence[Step]) -> str:
    return "\n".join(["import os, shutil, sys, time", *map(_python_line, steps)])


def _python_line(step: Step) -> str:
    match step:
        case Say():
            return f"os.write({step.stream}, {step.data!r})"
        case Flood():
            return f"stream = open({step.stream}, 'wb', closefd=False)\nfor _ in range({step.pages or 1 << 40}): stream.write(b'x' * {PAGE})\nstream.flush()"
        case Copy():
            return "shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer); sys.stdout.flush()"
        case ShowEnvironment():
            return "os.write(1, b''.join(name + b'=' + value + b'\\0' for name, value in os.environb.items()))"
        case ShowArguments():
            return "os.write(1, b''.join(os.fsencode(word) + b'\\0' for word in sys.argv[1:]))"
        case ShowFile():
            return f"os.write(1, open({step.path!r}, 'rb').read())"
        case Save():
            return f"open({step.path!r}, 'w').write({step.text!r})"
        case Spin():
            return "while True: pass"
        case Burn():
            return f"end = time.process_time() + {step.seconds}\nwhile time.process_time() < end: pass"
        case Sleep():
            return f"time.sleep({step.seconds})"
        case Allocate():
            return f"held = b'x' * {step.megabytes << 20}"
        case Exit():
            return f"sys.exit({step.code})"


_WASI = {
    "fd_write": "i32 i32 i32 i32",
    "fd_read": "i32 i32 i32 i32",
    "environ_sizes_get": "i32 i32",
    "environ_get": "i32 i32",
    "args_sizes_get": "i32 i32",
    "args_get": "i32 i32",
    "path_open": "i32 i32 i32 i32 i32 i64 i64 i32 i32",
    "fd_close": "i32",
    "clock_time_get": "i32 i64 i32",
    "poll_oneoff": "i32 i32 i32 i32",
}
_IMPORTS = "\n".join(
    f'(import "wasi_snapshot_preview1" "{name}" (func ${name} (param {parameters}) (result i32)))'
    for name, parameters in _WASI.items()
)
#: The first page is for the calls, the next for a buffer, and texts lie in the two after that.
_TEXTS = 2 * PAGE
_HELPERS = f"""
(func $write (param $stream i32) (param $at i32) (param $size i32)
  (i32.store (i32.const 0) (local.get $at)) (i32.store (i32.const 4) (local.get $size))
  (drop (call $fd_write (local.get $stream) (i32.const 0) (i32.const 1) (i32.const 8))))
(func $now (result i64)
  (drop (call $clock_time_get (i32.const 1) (i64.const 1) (i32.const 32))) (i64.load (i32.const 32)))
(func $copy (param $from i32) (local $size i32)
  (loop $more
    (i32.store (i32.const 0) (i32.const {PAGE})) (i32.store (i32.const 4) (i32.const {PAGE}))
    (drop (call $fd_read (local.get $from) (i32.const 0) (i32.const 1) (i32.const 8)))
    (local.set $size (i32.load (i32.const 8)))
    (if (local.get $size) (then (call $write (i32.const 1) (i32.const {PAGE}) (local.get $size)) (br $more)))))
(func $environment
  (drop (call $environ_sizes_get (i32.const 16) (i32.const 20)))
  (drop (call $environ_get (i32.const 1024) (i32.const {PAGE})))
  (call $write (i32.const 1) (i32.const {PAGE}) (i32.load (i32.const 20))))
(func $arguments (local $first i32)
  (drop (call $args_sizes_get (i32.const 16) (i32.const 20)))
  (drop (call $args_get (i32.const 1024) (i32.const {PAGE})))
  (if (i32.gt_u (i32.load (i32.const 16)) (i32.const 1)) (then
    (local.set $first (i32.sub (i32.load (i32.const 1028)) (i32.const {PAGE})))
    (call $write (i32.const 1) (i32.load (i32.const 1028))
      (i32.sub (i32.load (i32.const 20)) (local.get $first))))))
(func $open (param $at i32) (param $size i32) (param $flags i32) (param $rights i64) (result i32)
  (if (call $path_open (i32.const 3) (i32.const 0) (local.get $at) (local.get $size) (local.get $flags)
    (local.get $rights) (i64.const 0) (i32.const 0) (i32.const 40)) (then unreachable))
  (i32.load (i32.const 40)))
(func $flood (param $stream i32) (param $pages i32)
  (memory.fill (i32.const {PAGE}) (i32.const 120) (i32.const {PAGE}))
  (loop $more
    (call $write (local.get $stream) (i32.const {PAGE}) (i32.const {PAGE}))
    (br_if $more (local.tee $pages (i32.sub (local.get $pages) (i32.const 1))))))
(func $burn (param $nanoseconds i64) (local $end i64)
  (local.set $end (i64.add (call $now) (local.get $nanoseconds)))
  (loop $more (br_if $more (i64.lt_u (call $now) (local.get $end)))))
(func $sleep (param $nanoseconds i64)
  (memory.fill (i32.const 64) (i32.const 0) (i32.const 48))
  (i32.store (i32.const 80) (i32.const 1)) (i64.store (i32.const 88) (local.get $nanoseconds))
  (drop (call $poll_oneoff (i32.const 64) (i32.const 256) (i32.const 1) (i32.const 512))))
(func $allocate (param $pages i32) (local $before i32)
  (local.set $before (memory.grow (local.get $pages)))
  (if (i32.eq (local.get $before) (i32.const -1)) (then unreachable))
  (memory.fill (i32.mul (local.get $before) (i32.const {PAGE})) (i32.const 120)
    (i32.mul (local.get $pages) (i32.const {PAGE}))))
"""


def in_wat(steps: Sequence[Step]) -> str:
    data, body = b"", []
    for step in steps:
        if isinstance(step, Say):
            body.append(f"(call $write (i32.const {step.stream}) {_offset_and_size(data, step.data)})")
            data += step.data
        elif isinstance(step, ShowFile):
            body.append(
                f"(call $copy (call $open {_offset_and_size(data, step.path.encode())} (i32.const 0) (i64.const 2)))"
            )
            data += step.path.encode()
        elif isinstance(step, Save):
            path, text = step.path.encode(), step.text.encode()
            opened = f"(call $open {_offset_and_size(data, path)} (i32.const 9) (i64.const 64))"
            body.append(f"(call $write {opened} {_offset_and_size(data + path, text)})")
            data += path + text
        else:
            body.append(_wat_line(step))
    escaped = "".join(f"\\{byte:02x}" for byte in data)
    return f"""(module {_IMPORTS}
      (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
      (memory (export "memory") 4) (data (i32.const {_TEXTS}) "{escaped}") {_HELPERS}
      (func (export "_start") {" ".join(body)}))"""


def _offset_and_size(before: bytes, text: bytes) -> str:
    return f"(i32.const {_TEXTS + len(before)}) (i32.const {len(text)})"


def _wat_line(step: Step) -> str:
    match step:
        case Flood():
            return f"(call $flood (i32.const {step.stream}) (i32.const {step.pages or 0}))"  # from 0 it counts down for ever
        case Copy():
            return "(call $copy (i32.const 0))"
        case ShowEnvironment():
            return "(call $environment)"
        case ShowArguments():
            return "(call $arguments)"
        case Spin():
            return "(loop $for_ever (br $for_ever))"
        case Burn():
            return f"(call $burn (i64.const {round(step.seconds * 1e9)}))"
        case Sleep():
            return f"(call $sleep (i64.const {round(step.seconds * 1e9)}))"
        case Allocate():
            return f"(call $allocate (i32.const {step.megabytes * 16}))"
        case Exit():
            return f"(call $proc_exit (i32.const {step.code}))"
        case Say() | ShowFile() | Save():
            raise AssertionError("its text is placed by the caller")


_NAMES = {kind.__name__: kind for kind in get_args(Step)}


def as_script(steps: Sequence[Step]) -> str:
    """For the fake: the steps themselves."""
    return "\n".join(map(repr, steps))


def act(request: ExecRequest) -> FakeGuest:
    """The script of the fake: what a guest that takes these steps would print, use and return."""
    assert isinstance(request.code, str)
    guest = FakeGuest()
    for line in request.code.splitlines():
        guest = _after(guest, eval(line, _NAMES), request)  # what as_script wrote
    return guest


def _after(guest: FakeGuest, step: Step, request: ExecRequest) -> FakeGuest:
    match step:
        case Say():
            return _writing(guest, step.stream, step.data)
        case Flood():
            written = _writing(guest, step.stream, b"x" * (PAGE * (step.pages or 64)))
            return written if step.pages else replace(written, seconds=float("inf"))
        case Copy():
            return _writing(guest, 1, request.stdin_bytes)
        case ShowEnvironment():
            return _writing(guest, 1, "".join(f"{name}={value}\0" for name, value in request.env.items()).encode())
        case ShowArguments():
            return _writing(guest, 1, "".join(f"{word}\0" for word in request.args).encode())
        case ShowFile():
            content = {**request.files, **guest.files}[step.path]
            return _writing(guest, 1, content if isinstance(content, bytes) else content.encode())
        case Save():
            return replace(guest, files={**guest.files, step.path: step.text.encode()})
        case Spin():
            return replace(guest, seconds=float("inf"), cpu_seconds=float("inf"))
        case Burn():
            return replace(guest, seconds=guest.seconds + step.seconds, cpu_seconds=guest.cpu_seconds + step.seconds)
        case Sleep():
            return replace(guest, seconds=guest.seconds + step.seconds)
        case Allocate():
            return replace(guest, memory_mb=guest.memory_mb + step.megabytes)
        case Exit():
            return replace(guest, exit_code=step.code)


def _writing(guest: FakeGuest, stream: int, data: bytes) -> FakeGuest:
    name = "stdout" if stream == 1 else "stderr"
    return replace(guest, **{name: getattr(guest, name) + data})


PYTHON = Dialect("python", in_python, "def (:")
WAT = Dialect("wasm", in_wat, "(module (func (result i32)))")
SCRIPT = Dialect("python", as_script, "nonsense")
