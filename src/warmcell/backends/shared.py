"""The backend that the whole process shares, for calls that name none."""

from __future__ import annotations

from warmcell.backends.process.backend import ProcessBackend
from warmcell.lifetime.ownership import Lock

_lock = Lock()
_shared: ProcessBackend | None = None


def shared_backend() -> ProcessBackend:
    """Made when it is first asked for; it ends with the process."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = ProcessBackend()
        return _shared
