"""What is said when a seat's framework is not installed."""

from __future__ import annotations

from warmcell.core.errors import BackendUnavailable


def framework_missing(extra: str, error: ImportError) -> BackendUnavailable:
    hint = f"pip install 'warmcell[{extra}]'"
    return BackendUnavailable(f"this seat needs the package {error.name or extra!r}", hint=hint)
