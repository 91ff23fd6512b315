"""What compiled code depends on besides the module: the runtime, the processor, our own settings."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from pathlib import Path

from warmcell.backends.wasm.module_source import ModuleSource
from warmcell.backends.wasm.worker import wasmtime_version

_GUEST = Path(__file__).resolve().parent.parent.parent / "guest"
#: The files that decide how a module is compiled: proposals and settings, and the witness that is put into it.
_DECIDING_FILES = ("wasm_binary.py", "wasm_component.py", "wasm_engine.py", "wasm_witness.py")


@functools.cache
def settings_digest() -> str:
    """Changes whenever the code that compiles changes."""
    return hashlib.sha256(b"".join((_GUEST / name).read_bytes() for name in _DECIDING_FILES)).hexdigest()


@functools.cache
def processor() -> str:
    """The machine and the features of its processor: compiled code uses what it finds."""
    features = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("flags", "features")):
                features = line
                break
    except OSError:
        features = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {features}".encode()).hexdigest()


def cache_key(source: ModuleSource, needs_fuel: bool) -> str:
    """Two requests share compiled code exactly when this is the same."""
    runtime = (wasmtime_version(), processor(), settings_digest())
    parts = [source.digest, source.entry, source.is_own, needs_fuel, *runtime]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
