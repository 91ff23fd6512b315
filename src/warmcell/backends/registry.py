"""Backends by name: our own, and those that other packages bring through the entry point group below."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from warmcell.core.contracts import SandboxBackend
from warmcell.core.errors import BackendUnavailable, InvalidRequest

GROUP = "warmcell.backends"

#: Resolved before entry points: an installed package can add a backend, never replace one of these.
BUILT_IN = {
    "process": "warmcell.backends.process.backend:ProcessBackend",
    "wasm": "warmcell.backends.wasm.backend:WasmBackend",
    "fake": "warmcell.backends.fake:FakeBackend",
}


def backend_names() -> tuple[str, ...]:
    """Every name that `get_backend` knows, ours first."""
    others = {entry.name for entry in entry_points(group=GROUP)} - set(BUILT_IN)
    return (*BUILT_IN, *sorted(others))


def get_backend(name: str, /, **options: Any) -> SandboxBackend:
    """A new backend. `options` go to its constructor; the caller closes it.

    A third-party package registers a factory (a class, usually) in its own metadata::

        [project.entry-points."warmcell.backends"]
        firecracker = "my_package:FirecrackerBackend"
    """
    backend = _load(name)(**options)
    if not isinstance(backend, SandboxBackend):
        raise BackendUnavailable(
            f"{name!r} gave a {type(backend).__name__}, which is not a backend",
            hint="implement warmcell.SandboxBackend: name, capabilities(), execute(), aclose()",
        )
    return backend


def _load(name: str) -> Callable[..., Any]:
    if not isinstance(name, str):
        raise InvalidRequest(f"must be text, not {type(name).__name__}", field="backend")
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        known = ", ".join(backend_names())
        raise InvalidRequest(f"unknown backend {name[:40]!r}", field="backend", hint=f"one of {known}")
    return _load_entry(found[0])


def _load_entry(entry: EntryPoint) -> Callable[..., Any]:
    try:
        return entry.load()  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(
            f"backend {entry.name!r} ({entry.value}) could not be imported: {error}",
            hint="reinstall the package that brings it",
        ) from error
