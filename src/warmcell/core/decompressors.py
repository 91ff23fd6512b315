"""bzip2 and xz, which a Python lacks that was built where their libraries were missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from warmcell.core.errors import BackendUnavailable

try:
    from lzma import LZMAError as LZMAError
except ImportError:

    class LZMAError(Exception):  # type: ignore[no-redef]
        """Not raised here: `load_decompressor` refuses first."""


def load_decompressor(name: str) -> Any:
    """The module `bz2` or `lzma`. Raises a typed error if this Python lacks it."""
    try:
        return import_module(name)
    except ImportError:
        hint = "compress it with gzip, or use a Python that has this module"
        raise BackendUnavailable(f"the archive needs {name}, which this Python was built without", hint=hint) from None
