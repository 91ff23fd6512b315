"""The interpreter that guests get unless told otherwise."""

from __future__ import annotations

import os
import sys

_real: dict[str, str] = {}


def base_executable() -> str:
    """The interpreter that this one's virtual environment was made from, as a real file; looked up once."""
    name = getattr(sys, "_base_executable", None) or sys.executable or ""
    if name not in _real:
        _real[name] = os.path.realpath(name)
    return _real[name]
