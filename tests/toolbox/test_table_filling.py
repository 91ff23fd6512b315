"""The function that the toolbox build adds to fill the table in advance."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import require

ROOT = Path(__file__).resolve().parents[2]
MODULE = """(module (memory (export "memory") 1) (table 8 funcref) (elem (i32.const 2) $a $b $c) (global (mut i32) (i32.const 0))
  (func $a) (func $b) (func $c (local i64) (call $a))
  (func (export "_initialize") (call $b))
  (func (export "rehearse") (result i32) (call $c) (i32.const 0)))"""
A, B, C, REHEARSE = 0, 1, 2, 4


@pytest.fixture
def filling(monkeypatch: pytest.MonkeyPatch) -> Any:
    require(importlib.util.find_spec("wasmtime"), "wasmtime is not installed")
    for directory in ("modules", "toolbox"):
        monkeypatch.syspath_prepend(str(ROOT / directory))
    yield importlib.import_module("table_filling")
    for name in ("table_filling", "wasm_snapshot"):
        sys.modules.pop(name, None)


def test_functions_called_by_the_rehearsal_are_found(filling: Any) -> None:
    wasm = bytes(filling.wasmtime.wat2wasm(MODULE))
    assert filling.find_called_functions(wasm, "_initialize", "rehearse") == {A, C, REHEARSE}


def test_the_function_that_is_added_asks_for_exactly_those_places(filling: Any) -> None:
    wasm = bytes(filling.wasmtime.wat2wasm(MODULE))
    filled = filling.with_table_filling(wasm, {A, C, REHEARSE})
    place_of_a, place_of_c = bytes([0x41, 2, 0x25, 0, 0x1A]), bytes([0x41, 4, 0x25, 0, 0x1A])
    assert b"\0" + place_of_a + place_of_c + b"\x0b" in filled
    engine = filling.wasmtime.Engine()
    store = filling.wasmtime.Store(engine)
    instance = filling.wasmtime.Instance(store, filling.wasmtime.Module(engine, filled), [])
    assert instance.exports(store)["fill_table"](store) is None
