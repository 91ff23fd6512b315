"""Modules that call the host."""

from __future__ import annotations

import hashlib
import json

from tests.wasm import guests

from warmcell.backends.wasm.run_request import ModuleSource

CALLS = "\n".join(
    f"""(import "sandbox" "__sandbox_{what}" (func ${what} (param i32 i32) (result i32)))
    (import "sandbox" "__sandbox_{what}_response_len" (func ${what}_len (result i32)))
    (import "sandbox" "__sandbox_{what}_response_read" (func ${what}_read (param i32 i32) (result i32)))"""
    for what in ("fetch", "exec")
)


def own(wat: str) -> ModuleSource:
    """A module as if Warmcell shipped it."""
    return ModuleSource("wat", wat.encode, f"own:{hashlib.sha256(wat.encode()).hexdigest()}", "run", is_own=True)


def asks(what: str, request: object) -> str:
    """Sends one request, prints the response, and returns the code plus ten."""
    raw = request if isinstance(request, bytes) else json.dumps(request).encode()
    data = "".join(f"\\{byte:02x}" for byte in raw)
    return f"""(module {guests.WRITE} {CALLS} (memory (export "memory") 40) {guests.PRINT}
      (data (i32.const 1024) "{data}")
      (func (export "run") (result i32) (local $code i32) (local $size i32)
        (local.set $code (call ${what} (i32.const 1024) (i32.const {len(raw)})))
        (local.set $size (call ${what}_len))
        (if (i32.gt_s (local.get $size) (i32.const 0)) (then
          (local.set $size (call ${what}_read (i32.const 65536) (local.get $size)))
          (call $print (i32.const 1) (i32.const 65536) (local.get $size))))
        (i32.add (local.get $code) (i32.const 10))))"""
