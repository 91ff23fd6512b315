"""Adapters for agent frameworks, one module each. Import the one that you need; its extra has the same name."""

from __future__ import annotations

from warmcell.core.errors import BackendUnavailable


def framework_missing(extra: str, error: ImportError) -> BackendUnavailable:
    hint = f"pip install 'warmcell[{extra}]'"
    return BackendUnavailable(f"this adapter needs the package {error.name or extra!r}", hint=hint)
