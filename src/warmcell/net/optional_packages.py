"""Optional packages, imported on first use, with an error that names the extra."""

from __future__ import annotations

import importlib
from typing import Any

from warmcell.core.errors import BackendUnavailable


def need(module: str, extra: str = "net") -> Any:
    """Import the module. Raises `BackendUnavailable`, which says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        reason = f"networking needs the package {module.split('.')[0]!r}, which is not installed"
        raise BackendUnavailable(reason, hint=f"pip install 'warmcell[{extra}]'") from None


def optional(module: str) -> Any | None:
    """Import the module, or return None if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
