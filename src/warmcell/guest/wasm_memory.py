"""A guest's memory as seen from a host call: every access is checked, none can raise for anything a guest passes."""

from __future__ import annotations

import ctypes

import wasmtime


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
        # A pointer beyond 2 GiB arrives as a negative i32; it is an address like any other.
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
