"""The growth counter: what it changes in a module, and that unreadable modules are left alone."""

from __future__ import annotations

import pytest
import wasm.growth_counter as growth_counter
from hypothesis import given
from hypothesis import strategies as st
from wasm.binary import MEMORY_NAME, REFUSED_NAME, Outline, Unreadable, leb128

wasmtime = pytest.importorskip("wasmtime")

GROWS = """(module
  (import "env" "tick" (func $tick)) (global $other (mut i32) (i32.const 3)) (memory (export "memory") 1 100)
  (func (export "_start") (local v128)
    (block (loop (br_table 0 1 (i32.const 1))))
    (local.set 0 (v128.const i32x4 64 0 64 0))
    (drop (i8x16.extract_lane_s 3 (local.get 0)))
    (drop (f64.const 2)) (drop (f32.const 2)) (drop (i64.const 64))
    (memory.fill (i32.const 0) (i32.const 64) (i32.const 0))
    (if (i32.const 0) (then unreachable)))
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))"""


def _binary(text: str) -> bytes:
    return bytes(wasmtime.wat2wasm(text))


def _instance(binary: bytes) -> tuple[wasmtime.Store, dict[str, object]]:
    engine = wasmtime.Engine()
    store = wasmtime.Store(engine)
    store.set_limits(memory_size=10 * 65536)
    tick = wasmtime.Func(store, wasmtime.FuncType([], []), lambda: None)
    instance = wasmtime.Instance(store, wasmtime.Module(engine, binary), [tick])
    return store, dict(instance.exports(store))


def test_refused_growth_is_counted_and_all_else_is_as_before() -> None:
    counted, shape = growth_counter.add_growth_counter(_binary(GROWS))
    store, exports = _instance(counted)
    exports["_start"](store)  # type: ignore[operator]
    assert exports["grow"](store, 4) == 1  # type: ignore[operator]
    assert exports[REFUSED_NAME].value(store) == 0  # type: ignore[attr-defined]
    assert exports["grow"](store, 50) == -1  # type: ignore[operator]
    assert exports[REFUSED_NAME].value(store) == 55  # type: ignore[attr-defined]
    assert exports[MEMORY_NAME].size(store) == 5  # type: ignore[attr-defined]
    assert shape.counts_refusals
    assert shape.imports == [("env", "tick")]
    assert shape.signature_of_export("grow") == (b"\x7f", b"\x7f")


def test_a_module_without_memory_is_left_alone() -> None:
    binary = _binary('(module (func (export "_start")))')
    assert growth_counter.add_growth_counter(binary)[0] == binary


def test_names_that_are_taken_are_left_alone() -> None:
    binary = _binary(f'(module (memory 1) (export "{MEMORY_NAME}" (memory 0)) (func (export "_start")))')
    assert growth_counter.add_growth_counter(binary)[0] == binary


def test_bytes_that_only_look_like_growth_are_not_touched() -> None:
    text = "(module (memory 1) (func (drop (i32.const 64)) (block (nop)) (if (i32.const 1) (then unreachable))))"
    counted, shape = growth_counter.add_growth_counter(_binary(text))
    assert not shape.counts_refusals
    wasmtime.Module.validate(wasmtime.Engine(), counted)


def test_go_is_recognised() -> None:
    section = b"\x00" + leb128(12) + leb128(10) + b"go:buildid" + b"x"
    assert growth_counter.add_growth_counter(_binary("(module (memory 1))") + section)[1].is_go


@given(st.binary(max_size=300))
def test_nothing_trips_it(tail: bytes) -> None:
    _read(b"\0asm\1\0\0\0" + tail)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4))
def test_no_damage_trips_it(place: int, damage: bytes) -> None:
    binary = bytearray(_GROWS_BINARY)
    at = 8 + place % (len(binary) - 8)
    binary[at : at + len(damage)] = damage
    _read(bytes(binary))


_GROWS_BINARY = _binary(GROWS)


def _read(binary: bytes) -> Outline | None:
    try:
        return growth_counter.add_growth_counter(binary)[1]
    except Unreadable:
        return None
