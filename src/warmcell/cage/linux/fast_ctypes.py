"""The parts of `ctypes` that the cage uses, from its C module: loading `ctypes` itself would take noticeably longer.

Type checkers see the real module. A program can load both; they share the C module.
"""

from __future__ import annotations

from _ctypes import addressof, byref, get_errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctypes import (
        CDLL,
        PYFUNCTYPE,
        Array,
        PyDLL,
        c_char,
        c_int,
        c_int64,
        c_long,
        c_size_t,
        c_uint32,
        c_uint64,
        c_ulong,
        c_void_p,
        create_string_buffer,
    )
else:
    from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_PYTHONAPI, FUNCFLAG_USE_ERRNO, CFuncPtr, _SimpleCData, dlopen

    def _simple(name, code):
        return type(_SimpleCData)(name, (_SimpleCData,), {"_type_": code})

    c_char, c_void_p = _simple("c_char", "c"), _simple("c_void_p", "P")
    c_int, c_long, c_ulong = _simple("c_int", "i"), _simple("c_long", "l"), _simple("c_ulong", "L")
    # Of 64-bit Linux.
    c_uint32, c_int64, c_uint64, c_size_t = _simple("c_uint32", "I"), c_long, c_ulong, c_ulong

    def create_string_buffer(content, size=None):
        buffer = (c_char * (len(content) + 1 if size is None else size))()
        buffer.value = content
        return buffer

    def PYFUNCTYPE(result, *arguments):  # noqa: N802  # the name in ctypes
        """The type of functions that keep the GIL."""
        flags = FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI
        return type(CFuncPtr)("", (CFuncPtr,), {"_flags_": flags, "_restype_": result, "_argtypes_": arguments})

    class CDLL:
        """Functions of the libraries that the process has loaded, by name."""

        _of_all = FUNCFLAG_CDECL

        def __init__(self, name, use_errno=False):
            self._handle = dlopen(name, 0)
            flags = self._of_all | (FUNCFLAG_USE_ERRNO if use_errno else 0)
            self._kind = type(CFuncPtr)("", (CFuncPtr,), {"_flags_": flags, "_restype_": c_int})

        def __getattr__(self, name):
            function = self._kind((name, self))
            setattr(self, name, function)
            return function

    class PyDLL(CDLL):
        _of_all = FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI


def read_memory(address: int, length: int) -> bytes:
    return bytes((c_char * length).from_address(address))


def write_memory(address: int, content: bytes) -> None:
    (c_char * len(content)).from_address(address).raw = content


__all__ = ["CDLL", "PYFUNCTYPE", "Array", "PyDLL", "addressof", "byref", "c_char", "c_int", "c_int64"]
__all__ += ["c_long", "c_size_t", "c_uint32", "c_uint64", "c_ulong", "c_void_p", "create_string_buffer"]
__all__ += ["get_errno", "read_memory", "write_memory"]
