"""Turns an import that fails on a platform without POSIX into an error that says what to do."""

from __future__ import annotations

import os

from warmcell.core.errors import BackendUnavailable

_POSIX_MODULES = frozenset({"_posixsubprocess", "fcntl", "grp", "pwd", "resource", "termios"})


def explain_platform(error: ImportError | AttributeError) -> BackendUnavailable | None:
    """None if the import failed for another reason."""
    if os.name == "posix" and error.name not in _POSIX_MODULES:
        return None
    return BackendUnavailable(
        f"not supported on this platform: {error}", hint="run Warmcell on Linux; on Windows use WSL 2"
    )
