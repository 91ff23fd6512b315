"""The interpreter that guests get unless told otherwise."""

from __future__ import annotations

import os

from warmcell.lifetime.host_program import base_interpreter

_real: dict[str, str] = {}


def base_executable() -> str:
    """The interpreter that this one's virtual environment was made from, as a real file; looked up once.

    `BackendUnavailable` where this program is run by none: it is frozen, or Python is embedded in it.
    """
    name = base_interpreter()
    if name not in _real:
        _real[name] = os.path.realpath(name)
    return _real[name]
