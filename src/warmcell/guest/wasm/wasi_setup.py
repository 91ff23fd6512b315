"""The WASI configuration of a run: output files, standard input, directories, and the limit on open files."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import wasmtime
from wasm.protocol import GuestDirectory
from wasmtime import _ffi as ffi

#: For the worker itself: its socket, pipes, epolls, the streams and directories of nested runs.
_OWN_FILES = 64
_NESTED_FILES = 64


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
