"""Backends by name: our own, and those of other packages through the entry point group below."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from warmcell.core.contracts import SandboxBackend
from warmcell.core.errors import BackendUnavailable, InvalidRequest
from warmcell.core.platform_support import explain_platform

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

GROUP = "warmcell.backends"

#: Resolved before entry points: an installed package can add a backend, never replace one of these.
BUILT_IN = {
    "process": "warmcell.backends.process.backend:ProcessBackend",
    "wasm": "warmcell.backends.wasm.backend:WasmBackend",
    "fake": "warmcell.backends.fake:FakeBackend",
    "ray": "warmcell.backends.ray.backend:RayBackend",
}


def backend_names() -> tuple[str, ...]:
    """Every name that `get_backend` accepts, ours first."""
    others = {entry.name for entry in _find_installed()} - set(BUILT_IN)
    return (*BUILT_IN, *sorted(others))


def _find_installed() -> list[EntryPoint]:
    """Importing the metadata machinery takes longer than most runs, so this is called only if needed."""
    from importlib.metadata import entry_points

    return list(entry_points(group=GROUP))


def get_backend(name: str, /, **options: Any) -> SandboxBackend:
    """A new backend. `options` go to its constructor; the caller closes it.

    A third-party package registers a factory (a class, usually) in its own metadata::

        [project.entry-points."warmcell.backends"]
        firecracker = "my_package:FirecrackerBackend"

    `warmcell run --backend firecracker` calls it without options. `Sandbox(backend="firecracker")` gives it `policy`, a
    `SandboxPolicy` in which the work directory is a path at /work, and `fetch_policy` where the sandbox has one.
    """
    factory = _load(name)
    _check_options(name, factory, options)
    backend = factory(**options)
    if not isinstance(backend, SandboxBackend):
        raise BackendUnavailable(
            f"{name!r} returned a {type(backend).__name__}, which is not a backend",
            hint="implement warmcell.SandboxBackend: name, capabilities(), execute(), aclose()",
        )
    return backend


def _check_options(name: str, factory: Callable[..., Any], options: dict[str, Any]) -> None:
    """Reports options that a factory does not take: its own TypeError would look like a bug in the backend."""
    if not options:
        return
    from inspect import signature

    try:
        signature(factory).bind(**options)
    except TypeError:
        wanted = ", ".join(f"{option}=..." for option in options)
        hint = "use another backend, or leave it out"
        raise BackendUnavailable(f"the backend {name!r} does not accept {wanted}", hint=hint) from None


def _load(name: str) -> Callable[..., Any]:
    if not isinstance(name, str):
        raise InvalidRequest(f"must be text, not {type(name).__name__}", field="backend")
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        try:
            return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
        except (ImportError, AttributeError) as error:
            raise (explain_platform(error) or error) from None
    found = [entry for entry in _find_installed() if entry.name == name]
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
            hint="reinstall its package",
        ) from error
