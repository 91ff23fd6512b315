"""Exports of an instance, by name: `Instance.exports` lists all of them, 15 ms for a Go module."""

from __future__ import annotations

import ctypes

import wasmtime
from wasmtime import _ffi as ffi


def find_export(store: wasmtime.Store, instance: wasmtime.Instance, name: str) -> ffi.wasmtime_extern_t | None:
    item = ffi.wasmtime_extern_t()
    encoded = name.encode()
    is_there = ffi.wasmtime_instance_export_get(
        store._context(), ctypes.byref(instance._instance), encoded, len(encoded), ctypes.byref(item)
    )
    return item if is_there else None


def memory_bounds(store: wasmtime.Store, memory: ffi.wasmtime_extern_t) -> tuple[int, int]:
    """Address and size of a memory."""
    address = ffi.wasmtime_memory_data(store._context(), ctypes.byref(memory.of.memory))
    size = ffi.wasmtime_memory_data_size(store._context(), ctypes.byref(memory.of.memory))
    return ctypes.cast(address, ctypes.c_void_p).value or 0, size
