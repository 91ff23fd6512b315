"""What a run finds of the host: where its output goes, its input, its directories."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import NamedTuple

import wasmtime
from wasmtime import _ffi as ffi


class Broken(Exception):
    """Something on the host's side is not as the supervisor said."""


class Preopen(NamedTuple):
    """A host directory as the supervisor saw it: the inode must still be the same when it is opened here."""

    host_path: str
    guest_path: str
    is_writable: bool
    device: int
    inode: int


class World(NamedTuple):
    """It can be opened before there is a run: for one that is given an equal one, it is what that would open now."""

    stdout: str
    stderr: str
    preopens: Sequence[Preopen] = ()

    def opened(self) -> wasmtime.WasiConfig:
        """Opens it all, with an empty standard input."""
        wasi = wasmtime.WasiConfig()
        wasi.stdout_file, wasi.stderr_file = self.stdout, self.stderr
        give_stdin(wasi, b"")
        for preopen in self.preopens:
            _give_directory(wasi, preopen)
        return wasi


def give_stdin(wasi: wasmtime.WasiConfig, data: bytes) -> None:
    """As bytes, never as a pipe: wasmtime reads pipes on threads of its own, and a read from one cannot be stopped."""
    vector = ffi.wasm_byte_vec_t(0, None)
    if data:
        start = ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))
        ffi.wasm_byte_vec_new(ctypes.byref(vector), len(data), start)
    ffi.wasi_config_set_stdin_bytes(wasi.ptr(), ctypes.byref(vector))


def _give_directory(wasi: wasmtime.WasiConfig, preopen: Preopen) -> None:
    descriptor = os.open(preopen.host_path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != (preopen.device, preopen.inode):
            raise Broken(f"the directory for {preopen.guest_path} was replaced while the run was starting")
        wasi.preopen_dir(f"/proc/self/fd/{descriptor}", preopen.guest_path, preopen.is_writable)
    finally:
        os.close(descriptor)
