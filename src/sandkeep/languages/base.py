"""The interpreter that guests get unless told otherwise."""

from __future__ import annotations

import os
import sys


def base_executable() -> str:
    """The interpreter that this one's virtual environment was made from, as a real file."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable or "")
