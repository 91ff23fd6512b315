"""Path names of a workspace. Pure."""

from __future__ import annotations

import os

from warmcell.core.errors import PathTraversal
from warmcell.core.paths import MAX_NAME_BYTES as MAX_NAME_BYTES
from warmcell.core.paths import MAX_PATH_BYTES as MAX_PATH_BYTES
from warmcell.core.paths import Parts as Parts
from warmcell.core.paths import display_path as display_path
from warmcell.core.paths import path_text, plain_names, refuse_foreign_forms
from warmcell.core.paths import split_relative as split_relative


def split_guest_absolute(path: str | os.PathLike[str]) -> Parts:
    """Split an absolute guest path such as "/work/a.txt" into names."""
    text = path_text(path)
    if not text.startswith("/"):
        raise PathTraversal(display_path(text), "is not absolute")
    refuse_foreign_forms(text.lstrip("/"))
    return plain_names(text)


def printable(raw: str) -> str:
    """A file name as encodable text: bytes that are not UTF-8 become `\\xNN`."""
    return os.fsencode(raw).decode("utf-8", "backslashreplace")
