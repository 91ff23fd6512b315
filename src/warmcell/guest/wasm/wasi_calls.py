"""Replacements for the WASI calls of wasmtime that would outlive the deadline or reject valid arguments.

`poll_oneoff`: wasmtime sleeps through any interruption. `proc_exit`: wasmtime treats a status of 126 or more as an
error, but 127 is a shell's status for an unknown command.
"""

from __future__ import annotations

import ctypes
import struct
import time
from typing import Any

import wasmtime
from wasm.deadline import Deadline
from wasm.engine import WASI, HostFunction, HostFunctions

_SUCCESS, _EFAULT, _EINVAL, _ENOTSUP = 0, 21, 28, 58
_SUBSCRIPTION = struct.Struct("<QBxxxxxxxIxxxxQQHxxxxxx")
_EVENT = struct.Struct("<QHBxxxxxQHxxxxxx")
_MAX_SUBSCRIPTIONS = 1024
_CLOCK, _FD_READ, _FD_WRITE = range(3)
_REALTIME, _MONOTONIC = 0, 1
_IS_ABSOLUTE = 1


class GuestMemory:
    """A guest's memory, by checked address. Valid during one host call only.

    No argument of a guest can raise an exception.
    """

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


class GuestExit(Exception):
    """The guest called `proc_exit`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class WasiCalls:
    """The calls, bound to the deadline of the run in progress."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self.start = 0.0  # the zero of the guest's monotonic clock

    def functions(self) -> HostFunctions:
        return {
            (WASI, "poll_oneoff"): HostFunction(4, 1, self._poll_oneoff),
            (WASI, "proc_exit"): HostFunction(1, 0, self._proc_exit),
        }

    def _proc_exit(self, _caller: wasmtime.Caller, code: int) -> None:
        raise GuestExit(code & 0xFFFFFFFF)

    def _poll_oneoff(self, caller: wasmtime.Caller, source: int, target: int, count: int, written: int) -> int:
        if not 0 < count <= _MAX_SUBSCRIPTIONS:
            return _EINVAL
        memory = GuestMemory(caller)
        raw = memory.read(source, count * _SUBSCRIPTION.size)
        if raw is None or not memory.has(target, count * _EVENT.size) or not memory.has(written, 4):
            return _EFAULT
        events = self._wait(list(_SUBSCRIPTION.iter_unpack(raw)))
        memory.write(target, b"".join(events))
        memory.write(written, struct.pack("<I", len(events)))
        return _SUCCESS

    def _wait(self, subscriptions: list[tuple[Any, ...]]) -> list[bytes]:
        """Descriptors are files and finished pipes, which are always ready: only clocks can make us wait."""
        ready = [_event(item) for item in subscriptions if item[1] in (_FD_READ, _FD_WRITE)]
        broken = [_event(item, _ENOTSUP) for item in subscriptions if not _is_known(item)]
        if ready or broken:
            return ready + broken
        waits = [self._seconds(item) for item in subscriptions]
        self._deadline.sleep(min(waits))
        return [_event(item) for item, wait in zip(subscriptions, waits, strict=True) if wait <= min(waits)]

    def _seconds(self, subscription: tuple[Any, ...]) -> float:
        _, _, identity, nanoseconds, _, flags = subscription
        seconds = float(nanoseconds) / 1e9
        if not flags & _IS_ABSOLUTE:
            return seconds
        return seconds - (time.time() if identity == _REALTIME else time.monotonic() - self.start)


def _is_known(subscription: tuple[Any, ...]) -> bool:
    kind, clock = subscription[1], subscription[2]
    return kind in (_FD_READ, _FD_WRITE) or (kind == _CLOCK and clock in (_REALTIME, _MONOTONIC))


def _event(subscription: tuple[Any, ...], error: int = _SUCCESS) -> bytes:
    userdata, kind = subscription[:2]
    return _EVENT.pack(userdata, error, kind & 0xFF, 1 if kind == _FD_READ else 0, 0)
