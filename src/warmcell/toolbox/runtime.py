"""The installed wasmtime, the worker script, and what compiled code depends on besides its module."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import platform
from pathlib import Path

from warmcell.core.errors import BackendUnavailable
from warmcell.languages.base import base_executable

_WORKER = Path(__file__).resolve().parent.parent / "guest" / "wasm"
WORKER_SCRIPT = _WORKER / "worker.py"
#: The files that decide how a module is compiled: proposals and settings, and the counter that is put into it.
_DECIDING_FILES = ("binary.py", "component.py", "engine.py", "growth_counter.py")


@functools.cache
def wasmtime_directory() -> str:
    """The package wasmtime, found without importing it."""
    spec = importlib.util.find_spec("wasmtime")
    if spec is None or not spec.origin:
        raise BackendUnavailable("wasmtime is not installed", hint="pip install 'warmcell[wasm]'")
    return str(Path(spec.origin).resolve().parent)


@functools.cache
def wasmtime_version() -> str:
    """The version that is installed, from its metadata directory: reading it properly costs more than a run."""
    installed = sorted(Path(wasmtime_directory()).parent.glob("wasmtime-*.dist-info"))
    return installed[-1].name.removeprefix("wasmtime-").removesuffix(".dist-info") if installed else "unknown"


def interpreter() -> str:
    """What workers run in: the interpreter behind ours, as a real file. wasmtime is shown to it by its path."""
    return base_executable()


@functools.cache
def settings_digest() -> str:
    """Changes whenever the code that compiles changes."""
    return hashlib.sha256(b"".join((_WORKER / name).read_bytes() for name in _DECIDING_FILES)).hexdigest()


@functools.cache
def processor_features() -> frozenset[str]:
    """By the names that the kernel has for them; none where it does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("flags", "features")):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


@functools.cache
def processor() -> str:
    """The machine and the features of its processor: compiled code uses what it finds."""
    features = " ".join(sorted(processor_features())) or platform.processor()
    return hashlib.sha256(f"{platform.machine()} {features}".encode()).hexdigest()


def runtime_fingerprint() -> list[str]:
    """Compiled code is good for exactly one of these."""
    return [wasmtime_version(), processor(), settings_digest()]
