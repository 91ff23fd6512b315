"""Backends that the whole process shares, for calls that name none, or only its name."""

from __future__ import annotations

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.contracts import SandboxBackend
from warmcell.lifetime.ownership import Lock

_lock = Lock()
_shared: ProcessBackend | None = None
_named: dict[str, SandboxBackend] = {}


def shared_backend() -> ProcessBackend:
    """Created by the first call; closed when the process exits."""
    global _shared
    if _shared is not None:
        return _shared
    with _lock:
        if _shared is None:
            _shared = ProcessBackend()
        return _shared


def shared_backend_named(name: str) -> SandboxBackend:
    """Like `shared_backend`, for a backend by name."""
    if name == "process":
        return shared_backend()
    from warmcell.backends.registry import get_backend

    with _lock:
        if name not in _named:
            _named[name] = get_backend(name)
        return _named[name]
