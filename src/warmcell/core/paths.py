"""Splits the text of a path into names, or refuses it. Nothing is opened here. Pure module."""

from __future__ import annotations

import os

from warmcell.core.errors import PathTraversal

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
Parts = tuple[str, ...]


def split_relative(path: str | os.PathLike[str]) -> Parts:
    """The names of a path inside the workspace; `()` for "." itself. Raises `PathTraversal` for anything else.

    Empty and "." components are dropped as the kernel would; ".." is always refused, even if it would stay inside,
    because its meaning depends on links that a guest can change.
    """
    text = path_text(path)
    if text.startswith("/"):
        raise PathTraversal(display_path(text), "is absolute")
    refuse_foreign_forms(text)
    return plain_names(text)


def display_path(text: str) -> str:
    """A path for an error message: encodable, and short enough to read."""
    safe = text.encode("utf-8", "backslashreplace").decode()
    return safe if len(safe) <= 200 else safe[:200] + "..."


def path_text(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise PathTraversal(display_path(repr(path)), "is not text")
    if not text:
        raise PathTraversal("", "is empty")
    if "\0" in text:
        raise PathTraversal(display_path(text), "contains NUL")
    if len(text) > MAX_PATH_BYTES:
        raise PathTraversal(display_path(text), f"is longer than {MAX_PATH_BYTES} bytes")
    return text


def refuse_foreign_forms(text: str) -> None:
    """Refuses forms that mean another place on other systems or in a shell; literally they would only surprise."""
    if "\\" in text:
        raise PathTraversal(display_path(text), "contains a backslash")
    if text[1:2] == ":" and text[0].isascii() and text[0].isalpha():
        raise PathTraversal(display_path(text), "starts with a drive letter")
    if text.startswith("~") and (text == "~" or "/" in text):
        raise PathTraversal(display_path(text), "starts with a home directory")


def plain_names(text: str) -> Parts:
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise PathTraversal(display_path(text), "is not valid Unicode") from None
    if size > MAX_PATH_BYTES:
        raise PathTraversal(display_path(text), f"is longer than {MAX_PATH_BYTES} bytes")
    names = tuple(name for name in text.split("/") if name not in ("", "."))
    for name in names:
        if name == "..":
            raise PathTraversal(display_path(text), "contains '..'")
        if len(name.encode()) > MAX_NAME_BYTES:
            raise PathTraversal(display_path(text), f"has a component longer than {MAX_NAME_BYTES} bytes")
    return names
