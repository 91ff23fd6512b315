"""The WASI configuration of a run: output files, standard input, directories."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import NamedTuple

import wasmtime
from wasm.protocol import GuestDirectory
from wasmtime import _ffi as ffi


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
