"""The interpreter that guests get by default."""

from __future__ import annotations

import os
import sys

from warmcell.lifetime.host_program import base_interpreter

_known: dict[tuple[object, ...], str] = {}


def base_executable() -> str:
    """The real path of the interpreter that this program's virtual environment was created from.

    Raises `BackendUnavailable` if an interpreter does not run this program: it is frozen, or embeds Python.
    """
    key = (getattr(sys, "_base_executable", None), sys.executable, getattr(sys, "frozen", False))
    if key not in _known:
        _known[key] = os.path.realpath(base_interpreter())
    return _known[key]
