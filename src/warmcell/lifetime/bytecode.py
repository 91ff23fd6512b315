"""Writes byte code beside its sources, for modules that are imported where it cannot be written."""

from __future__ import annotations

import contextlib
import math
import os
import sys


def write_bytecode(directory: str) -> None:
    """Compiles the modules of a directory whose byte code for this interpreter is missing or old.

    Does nothing if Python is configured not to write byte code, or to write it elsewhere.
    """
    if sys.dont_write_bytecode or sys.pycache_prefix is not None:
        return
    for source, bytecode in _missing_bytecode(directory):
        _compile(source, bytecode)


def _missing_bytecode(directory: str) -> list[tuple[str, str]]:
    """Pairs of source and byte code path where byte code is missing or old; none in a read-only directory."""
    found, suffix = [], f".{sys.implementation.cache_tag}.pyc"
    for name in os.listdir(directory) if os.access(directory, os.W_OK) else ():
        if name.endswith(".py"):
            source, bytecode = f"{directory}/{name}", f"{directory}/__pycache__/{name[:-3]}{suffix}"
            if _mtime(bytecode) < _mtime(source):
                found.append((source, bytecode))
    return found


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return -math.inf


def _compile(source: str, bytecode: str) -> None:
    import py_compile

    with contextlib.suppress(OSError, py_compile.PyCompileError):  # without byte code each import compiles the module
        py_compile.compile(source, bytecode, doraise=True)
