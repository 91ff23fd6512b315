"""The C functions of wasmtime that every run calls, with plain addresses: the Python wrappers are far slower.

The caller keeps the objects behind the addresses alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from ctypes import c_bool, c_char_p, c_size_t, c_uint64, c_void_p
from typing import Any

import wasmtime
from wasmtime import _ffi as ffi
from wasmtime._func import maybe_raise_last_exn


def _function(name: str, result: type[Any] | None, *parameters: type[Any]) -> Any:
    function = ffi.dll[name]  # a new object: the attribute belongs to the package and has its own types
    function.restype, function.argtypes = result, parameters
    return function


_set_argv = _function("wasi_config_set_argv", c_bool, c_void_p, c_size_t, c_void_p)
_set_env = _function("wasi_config_set_env", c_bool, c_void_p, c_size_t, c_void_p, c_void_p)
_set_wasi = _function("wasmtime_context_set_wasi", c_void_p, c_void_p, c_void_p)
_func_call = _function(
    "wasmtime_func_call", c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p
)
#: Arguments: context, number of ticks from now.
set_epoch_deadline = _function("wasmtime_context_set_epoch_deadline", None, c_void_p, c_uint64)
#: Arguments: context, memory.
memory_bytes = _function("wasmtime_memory_data_size", c_size_t, c_void_p, c_void_p)


def context_of(store: wasmtime.Store) -> int:
    """The address of the store's context, valid while the store is open."""
    return ctypes.cast(store._context(), c_void_p).value or 0


def set_wasi(context: int, wasi: wasmtime.WasiConfig) -> None:
    """Replaces the store's configuration and closes the files of the old one."""
    if error := _set_wasi(context, wasi._consume()):
        raise _error(error)


def set_arguments(wasi: wasmtime.WasiConfig, argv: Sequence[str], env: dict[str, str]) -> None:
    config = wasi.ptr()
    if not _set_argv(config, len(argv), _c_strings(argv)):
        raise wasmtime.WasmtimeError("failed to configure argv")
    if env and not _set_env(config, len(env), _c_strings(env), _c_strings(env.values())):
        raise wasmtime.WasmtimeError("failed to configure environment")


def _c_strings(texts: Collection[str]) -> ctypes.Array[c_char_p]:
    return (c_char_p * len(texts))(*map(str.encode, texts))


def _error(address: int) -> wasmtime.WasmtimeError:
    return wasmtime.WasmtimeError._from_ptr(ctypes.cast(address, ctypes.POINTER(ffi.wasmtime_error_t)))


class EntryCall:
    """A prepared call of a module's entry function. Use it once."""

    def __init__(self, context: int, entry: ffi.wasmtime_extern_t, has_result: bool) -> None:
        self._entry = entry
        self._results = (ffi.wasmtime_val_t * has_result)()
        self._trap = ctypes.POINTER(ffi.wasm_trap_t)()
        places = ctypes.addressof(self._results), int(has_result), ctypes.addressof(self._trap)
        self._arguments = (context, ctypes.addressof(entry.of.func), None, 0, *places)

    def __call__(self) -> int:
        """The result as an unsigned number; 0 if the function returns nothing."""
        error = _func_call(*self._arguments)
        if error or self._trap:
            ended = _error(error) if error else wasmtime.Trap._from_ptr(self._trap)
            maybe_raise_last_exn()  # an exception from a host call takes precedence: it is why the guest ended
            raise ended
        return int(self._results[0].of.i32) & 0xFFFFFFFF if self._results else 0
