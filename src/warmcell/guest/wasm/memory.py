"""A guest's memory: by export name from outside, by checked address from host calls.

No argument of a guest can raise an exception. `Instance.exports` is not used: it lists all exports, which takes 15 ms
for a Go module.
"""

from __future__ import annotations

import ctypes

import wasmtime
from wasmtime import _ffi as ffi


class GuestMemory:
    """Valid during one host call only."""

    def __init__(self, caller: wasmtime.Caller) -> None:
        exported = caller.get("memory")
        self.size = 0
        self._base = 0
        if isinstance(exported, wasmtime.Memory):
            self.size = exported.data_len(caller)
            self._base = ctypes.addressof(exported.data_ptr(caller).contents) if self.size else 0

    def has(self, start: int, size: int) -> bool:
        # A pointer beyond 2 GiB arrives as a negative i32 and is a valid address.
        start &= 0xFFFFFFFF
        return size >= 0 and start + size <= self.size

    def read(self, start: int, size: int) -> bytes | None:
        if not self.has(start, size):
            return None
        return ctypes.string_at(self._base + (start & 0xFFFFFFFF), size) if size else b""

    def write(self, start: int, data: bytes) -> bool:
        if not self.has(start, len(data)):
            return False
        ctypes.memmove(self._base + (start & 0xFFFFFFFF), data, len(data))
        return True


def find_export(store: wasmtime.Store, instance: wasmtime.Instance, name: str) -> ffi.wasmtime_extern_t | None:
    item = ffi.wasmtime_extern_t()
    encoded = name.encode()
    is_there = ffi.wasmtime_instance_export_get(
        store._context(), ctypes.byref(instance._instance), encoded, len(encoded), ctypes.byref(item)
    )
    return item if is_there else None


def memory_address(store: wasmtime.Store, memory: ffi.wasmtime_extern_t) -> int:
    address = ffi.wasmtime_memory_data(store._context(), ctypes.byref(memory.of.memory))
    return ctypes.cast(address, ctypes.c_void_p).value or 0


def memory_size(store: wasmtime.Store, memory: ffi.wasmtime_extern_t) -> int:
    return int(ffi.wasmtime_memory_data_size(store._context(), ctypes.byref(memory.of.memory)))
