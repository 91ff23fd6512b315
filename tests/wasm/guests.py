"""Small guests in WAT that several tests use."""

from __future__ import annotations

WRITE = '(import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))'
READ = '(import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))'
EXIT = '(import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))'
PRINT = """(func $print (param $stream i32) (param $at i32) (param $size i32)
  (i32.store (i32.const 0) (local.get $at)) (i32.store (i32.const 4) (local.get $size))
  (drop (call $fd_write (local.get $stream) (i32.const 0) (i32.const 1) (i32.const 8))))"""


def prints(text: str, *, stream: int = 1, then: str = "") -> str:
    """Writes a text, then runs `then`."""
    data = "".join(f"\\{byte:02x}" for byte in text.encode())
    return f"""(module {WRITE} {EXIT} (memory (export "memory") 2) (data (i32.const 64) "{data}") {PRINT}
      (func (export "_start")
        (call $print (i32.const {stream}) (i32.const 64) (i32.const {len(text.encode())})) {then}))"""


def exits(code: int) -> str:
    return f'(module {EXIT} (memory (export "memory") 1) (func (export "_start") (call $proc_exit (i32.const {code}))))'


def body(code: str, fields: str = "") -> str:
    """A guest that only computes."""
    return f'(module {fields} (func (export "_start") {code}))'


LOOP = body("(loop (br 0))")
START_LOOP = '(module (func $start (loop (br 0))) (start $start) (func (export "_start")))'
#: A loop that ends, but not within any timeout.
HUGE_LOOP = body(
    """(local $i i64) (local.set $i (i64.const 0))
  (loop (local.set $i (i64.add (local.get $i) (i64.const 1)))
    (br_if 0 (i64.ne (local.get $i) (i64.const -1))))"""
)
ENDLESS_RECURSION = '(module (func $again (export "_start") (call $again) (call $again)))'
TRAP = body("unreachable")
GROW_THEN_TRAP = body("(loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable", "(memory 1)")
BIG_GROW_THEN_TRAP = body(
    "(if (i32.eq (memory.grow (i32.const 30000)) (i32.const -1)) (then unreachable))", "(memory 1)"
)

#: Copies standard input to standard output until its end.
CAT = f"""(module {READ} {WRITE} (memory (export "memory") 2) {PRINT}
  (func (export "_start") (local $size i32)
    (loop $more
      (i32.store (i32.const 16) (i32.const 65536)) (i32.store (i32.const 20) (i32.const 65536))
      (drop (call $fd_read (i32.const 0) (i32.const 16) (i32.const 1) (i32.const 24)))
      (local.set $size (i32.load (i32.const 24)))
      (if (local.get $size) (then (call $print (i32.const 1) (i32.const 65536) (local.get $size)) (br $more))))))"""


def floods(stream: int, times: int | None) -> str:
    """Writes 64 KiB of "x" repeatedly, forever if `times` is None."""
    again = (
        "(br $more)" if times is None else "(br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1))))"
    )
    return f"""(module {WRITE} (memory (export "memory") 3) {PRINT}
      (func (export "_start") (local $left i32) (local.set $left (i32.const {times or 0}))
        (memory.fill (i32.const 65536) (i32.const 120) (i32.const 65536))
        (loop $more (call $print (i32.const {stream}) (i32.const 65536) (i32.const 65536)) {again})))"""


def sleeps(nanoseconds: int, clock: int = 1, flags: int = 0) -> str:
    """One poll_oneoff on a clock."""
    return f"""(module
      (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
      (memory (export "memory") 1)
      (func (export "_start")
        (i32.store (i32.const 16) (i32.const {clock})) (i64.store (i32.const 24) (i64.const {nanoseconds}))
        (i32.store16 (i32.const 40) (i32.const {flags}))
        (drop (call $poll (i32.const 0) (i32.const 256) (i32.const 1) (i32.const 512)))))"""
