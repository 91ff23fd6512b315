"""Pure module: names of a workspace's paths, as the core has them, and those forms that only a workspace knows."""

from __future__ import annotations

import os

from warmcell.core.errors import PathTraversal
from warmcell.core.paths import MAX_NAME_BYTES as MAX_NAME_BYTES
from warmcell.core.paths import MAX_PATH_BYTES as MAX_PATH_BYTES
from warmcell.core.paths import Parts as Parts
from warmcell.core.paths import path_text, plain_names, refuse_foreign_forms
from warmcell.core.paths import shown as shown
from warmcell.core.paths import split_relative as split_relative


def split_guest_absolute(path: str | os.PathLike[str]) -> Parts:
    """The names of an absolute path as the guest sees it, such as "/work/a.txt"."""
    text = path_text(path)
    if not text.startswith("/"):
        raise PathTraversal(shown(text), "is not absolute")
    refuse_foreign_forms(text.lstrip("/"))
    return plain_names(text)


def printable(raw: str) -> str:
    """A name as the file system gave it, as text that can be encoded: bytes that are not UTF-8 become `\\xNN`."""
    return os.fsencode(raw).decode("utf-8", "backslashreplace")
