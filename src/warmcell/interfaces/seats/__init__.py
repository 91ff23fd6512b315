"""Adapters for agent frameworks, one module each. Import the one that you need; its extra has the same name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from warmcell.core.errors import BackendUnavailable


@contextmanager
def framework(extra: str) -> Iterator[None]:
    """Name the extra if an import in the block fails."""
    try:
        yield
    except ImportError as error:
        hint = f"pip install 'warmcell[{extra}]'"
        raise BackendUnavailable(f"this adapter needs the package {error.name or extra!r}", hint=hint) from error
