"""WASI for guests: the configuration of a run, the limit on open files, and calls in place of wasmtime's own.

`poll_oneoff`: wasmtime sleeps through any interruption. `proc_exit`: wasmtime treats a status of 126 or more as an
error, but 127 is a shell's status for an unknown command. No argument of a guest can raise an exception.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import wasmtime
from wasm.deadline import Deadline
from wasm.engine import WASI, HostFunction, HostFunctions
from wasm.protocol import GuestDirectory
from wasmtime import _ffi as ffi

#: For the worker itself: its socket, pipes, epolls, the streams and directories of nested runs.
_OWN_FILES = 64
_NESTED_FILES = 64
_SUCCESS, _EFAULT, _EINVAL, _ENOTSUP = 0, 21, 28, 58
_SUBSCRIPTION = struct.Struct("<QBxxxxxxxIxxxxQQHxxxxxx")
_EVENT = struct.Struct("<QHBxxxxxQHxxxxxx")
_MAX_SUBSCRIPTIONS = 1024
_CLOCK, _FD_READ, _FD_WRITE = range(3)
_REALTIME, _MONOTONIC = 0, 1
_IS_ABSOLUTE = 1


class SetupFailed(Exception):
    """The host side of a run is not as the supervisor described it."""


class WasiSetup(NamedTuple):
    """What a run can reach. It can be opened before the run starts: an equal setup opens the same files."""

    stdout: str
    stderr: str
    directories: Sequence[GuestDirectory] = ()

    def open(self) -> wasmtime.WasiConfig:
        """Opens the output files and directories. Standard input is empty."""
        wasi = wasmtime.WasiConfig()
        wasi.stdout_file, wasi.stderr_file = self.stdout, self.stderr
        set_stdin(wasi, b"")
        for directory in self.directories:
            _preopen(wasi, directory)
        return wasi


def set_stdin(wasi: wasmtime.WasiConfig, data: bytes) -> None:
    """As bytes, never as a pipe: wasmtime reads pipes on its own threads, and such a read cannot be interrupted."""
    vector = ffi.wasm_byte_vec_t(0, None)
    if data:
        start = ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))
        ffi.wasm_byte_vec_new(ctypes.byref(vector), len(data), start)
    ffi.wasi_config_set_stdin_bytes(wasi.ptr(), ctypes.byref(vector))


def _preopen(wasi: wasmtime.WasiConfig, directory: GuestDirectory) -> None:
    descriptor = os.open(directory.worker_path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != (directory.device, directory.inode):
            raise SetupFailed(f"the directory for {directory.guest_path} was replaced while the run was starting")
        wasi.preopen_dir(f"/proc/self/fd/{descriptor}", directory.guest_path, directory.is_writable)
    finally:
        os.close(descriptor)


class OpenFilesLimit:
    """Set once per run; the worker opens its own files within `headroom`.

    Guests open files in the worker's own process. Without a reserve, a guest that opens as many as it may would make
    the worker's next call fail, with errors that no guest should see.
    """

    def __init__(self) -> None:
        self._soft = 0

    @functools.cached_property
    def _hard(self) -> int:
        """Read late: the worker is a fork, and its limit may differ from the zygote's."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def set(self, open_files: int) -> None:
        soft = open_files + _OWN_FILES
        if self._hard != resource.RLIM_INFINITY:
            soft = min(soft, self._hard - _NESTED_FILES)
        if soft != self._soft:
            self._soft = soft
            self._apply(soft)

    @contextlib.contextmanager
    def headroom(self) -> Iterator[None]:
        """Raises the limit for a while. No guest code may run meanwhile."""
        self._apply(self._soft + _NESTED_FILES if self._soft else self._hard)
        try:
            yield
        finally:
            if self._soft:
                self._apply(self._soft)

    def _apply(self, soft: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, self._hard))


open_files_limit = OpenFilesLimit()


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
