"""Where the modules are, the installed wasmtime, the worker script, and what else compiled code depends on."""

from __future__ import annotations

import contextlib
import functools
import os
from _frozen_importlib_external import PathFinder

from warmcell.core.errors import BackendUnavailable
from warmcell.lifetime.bytecode import write_bytecode
from warmcell.lifetime.late_site import run_site
from warmcell.toolbox.small_digests import sha256

_WORKER = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "guest", "wasm")
WORKER_SCRIPT = os.path.join(_WORKER, "worker.py")
#: The files that decide how a module is compiled: proposals, settings, and the growth counter added to it.
_DECIDING_FILES = ("binary.py", "component.py", "engine.py", "growth_counter.py")
PACKAGE = "warmcell_toolbox"
REMEDY = "pip install 'warmcell[wasm]'"
_OWN = os.path.dirname(os.path.realpath(__file__))


@functools.cache
def modules_directory() -> str:
    """Our own directory in a checkout, otherwise that of the package `warmcell-toolbox`.

    Without any modules it is our own, where nothing will be found.
    """
    if os.path.isfile(os.path.join(_OWN, "toolbox.wasm")):
        return _OWN
    spec = PathFinder.find_spec(PACKAGE)
    if spec is None:
        run_site()  # the command line may have skipped it
        spec = PathFinder.find_spec(PACKAGE)
    return _OWN if spec is None or not spec.origin else os.path.dirname(os.path.realpath(spec.origin))


@functools.cache
def ready_made_directory() -> str:
    """The compiled modules, visible to workers. It may be missing."""
    return os.path.join(modules_directory(), "ready_made")


def has_modules() -> bool:
    return os.path.isfile(os.path.join(modules_directory(), "toolbox.wasm"))


@functools.cache
def wasmtime_directory() -> str:
    """The directory of the package wasmtime, found without importing it."""
    spec = PathFinder.find_spec("wasmtime")
    if spec is None:
        from importlib.util import find_spec

        run_site()  # the command line may have skipped it
        spec = find_spec("wasmtime")
    if spec is None or not spec.origin:
        raise BackendUnavailable("wasmtime is not installed", hint=REMEDY)
    return os.path.dirname(os.path.realpath(spec.origin))


@functools.cache
def wasmtime_version() -> str:
    """The installed version, from the name of its metadata directory: `importlib.metadata` costs more than a run."""
    beside = os.listdir(os.path.dirname(wasmtime_directory()))
    installed = sorted(name for name in beside if name.startswith("wasmtime-") and name.endswith(".dist-info"))
    return installed[-1].removeprefix("wasmtime-").removesuffix(".dist-info") if installed else "unknown"


@functools.cache
def write_worker_bytecode() -> None:
    """Compiles the files that workers import, if the installer did not: in their cage they cannot write byte code, and
    compiling doubles their start-up time.
    """
    wasmtime = wasmtime_directory()
    for directory in (_WORKER, wasmtime, os.path.join(wasmtime, "component")):
        write_bytecode(directory)


@functools.cache
def settings_digest() -> str:
    """Changes whenever the code that compiles changes."""
    digest = sha256()
    for name in _DECIDING_FILES:
        with open(os.path.join(_WORKER, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


@functools.cache
def processor_features() -> frozenset[str]:
    """By the kernel's names; empty if it does not list them."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.lower().startswith(("flags", "features")):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


@functools.cache
def processor() -> str:
    """A digest of the machine and its processor features, which compiled code may use."""
    features = " ".join(sorted(processor_features()))
    if not features:
        import platform

        features = platform.processor()
    return sha256(f"{machine()} {features}".encode()).hexdigest()


def machine() -> str:
    """Like `platform.machine()`."""
    if hasattr(os, "uname"):
        return os.uname().machine
    import platform

    return platform.machine()


def runtime_fingerprint() -> list[str]:
    """Compiled code is valid for exactly one fingerprint."""
    return [wasmtime_version(), processor(), settings_digest()]
