"""The few calls of wasmtime that every run makes, with plain addresses: the package's own ways take far longer.

Addresses are those of objects that the caller keeps.
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
    function = ffi.dll[name]  # a new one: as an attribute it is the package's, with types of its own
    function.restype, function.argtypes = result, parameters
    return function


_set_argv = _function("wasi_config_set_argv", c_bool, c_void_p, c_size_t, c_void_p)
_set_env = _function("wasi_config_set_env", c_bool, c_void_p, c_size_t, c_void_p, c_void_p)
_set_wasi = _function("wasmtime_context_set_wasi", c_void_p, c_void_p, c_void_p)
_func_call = _function(
    "wasmtime_func_call", c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p
)
#: Context, how many ticks from now.
set_epoch_deadline = _function("wasmtime_context_set_epoch_deadline", None, c_void_p, c_uint64)
#: Context, memory.
memory_bytes = _function("wasmtime_memory_data_size", c_size_t, c_void_p, c_void_p)


def context_of(store: wasmtime.Store) -> int:
    """Where the calls above find the store, as long as it is open."""
    return ctypes.cast(store._context(), c_void_p).value or 0


def give_wasi(context: int, wasi: wasmtime.WasiConfig) -> None:
    """The store's from now on, in place of what it had, which is closed."""
    if error := _set_wasi(context, wasi._consume()):
        raise _error(error)


def give_words(wasi: wasmtime.WasiConfig, argv: Sequence[str], env: dict[str, str]) -> None:
    """Arguments and environment."""
    config = wasi.ptr()
    if not _set_argv(config, len(argv), _texts(argv)):
        raise wasmtime.WasmtimeError("failed to configure argv")
    if env and not _set_env(config, len(env), _texts(env), _texts(env.values())):
        raise wasmtime.WasmtimeError("failed to configure environment")


def _texts(texts: Collection[str]) -> ctypes.Array[c_char_p]:
    return (c_char_p * len(texts))(*map(str.encode, texts))


def _error(address: int) -> wasmtime.WasmtimeError:
    return wasmtime.WasmtimeError._from_ptr(ctypes.cast(address, ctypes.POINTER(ffi.wasmtime_error_t)))


class EntryCall:
    """A call of a module's entry, ready to be made once."""

    def __init__(self, context: int, entry: ffi.wasmtime_extern_t, has_result: bool) -> None:
        self._entry = entry
        self._results = (ffi.wasmtime_val_t * has_result)()
        self._trap = ctypes.POINTER(ffi.wasm_trap_t)()
        places = ctypes.addressof(self._results), int(has_result), ctypes.addressof(self._trap)
        self._arguments = (context, ctypes.addressof(entry.of.func), None, 0, *places)

    def __call__(self) -> int:
        """The result as a number without sign, 0 where there is none."""
        error = _func_call(*self._arguments)
        if error or self._trap:
            ended = _error(error) if error else wasmtime.Trap._from_ptr(self._trap)
            maybe_raise_last_exn()  # what a host call of ours raised comes first: it is why the guest ended
            raise ended
        return int(self._results[0].of.i32) & 0xFFFFFFFF if self._results else 0
