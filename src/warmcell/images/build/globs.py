"""Wildcards of Dockerfiles and .dockerignore files. Pure.

As Go's `filepath.Match`, with `**` for any number of directories. Not by regular expressions: patterns come from
strangers, and time must not grow exponentially with their length.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

from warmcell.core.errors import InvalidRequest

_WILD = frozenset("*?[\\")
_MOST_PATTERNS, _MOST_CHARACTERS = 10_000, 4096


def has_wildcard(text: str) -> bool:
    return not _WILD.isdisjoint(text)


def matches(pattern: str, name: str) -> bool:
    """Whether a name without a slash fits. On a mismatch only the last star can take more."""
    tokens = _tokens(pattern)
    at = token = 0
    star, resume = -1, 0
    while at < len(name):
        if token < len(tokens) and tokens[token] == "*":
            star, resume = token, at
            token += 1
        elif token < len(tokens) and _fits(tokens[token], name[at]):
            token, at = token + 1, at + 1
        elif star >= 0:
            resume += 1
            token, at = star + 1, resume
        else:
            return False
    return all(rest == "*" for rest in tokens[token:])


def matches_path(pattern: Sequence[str], path: Sequence[str]) -> bool:
    """Whether a path fits, part by part."""
    fitting = {0}  # how many parts of the path the pattern so far can take
    for part in pattern:
        if part == "**":
            fitting = set(range(min(fitting), len(path) + 1)) if fitting else set()
        else:
            fitting = {at + 1 for at in fitting if at < len(path) and matches(part, path[at])}
    return len(path) in fitting


class IgnoreRules:
    """The patterns of a .dockerignore file: the last one that fits decides, and "!" makes an exception."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._rules: list[tuple[tuple[str, ...], bool]] = []
        for line in lines:
            text = line.strip()
            if not text or line.startswith("#"):
                continue
            is_exception = text.startswith("!")
            cleaned = posixpath.normpath(text[is_exception:].strip()).strip("/")
            if len(text) > _MOST_CHARACTERS or len(self._rules) >= _MOST_PATTERNS:
                raise InvalidRequest("the .dockerignore file is too large", field="context_dir")
            if cleaned not in ("", "."):
                self._rules.append((tuple(cleaned.split("/")), is_exception))

    @property
    def has_exceptions(self) -> bool:
        """Whether something in an ignored directory may not be ignored."""
        return any(is_exception for _, is_exception in self._rules)

    def ignores(self, path: str) -> bool:
        """A pattern that fits a directory fits everything in it."""
        if not self._rules or not path:
            return False
        parts = path.split("/")
        is_ignored = False
        for pattern, is_exception in self._rules:
            if is_ignored == is_exception and any(
                matches_path(pattern, parts[:length]) for length in range(1, len(parts) + 1)
            ):
                is_ignored = not is_exception
        return is_ignored


def _tokens(pattern: str) -> list[str]:
    """Single characters, "*", "?", and classes as "[...]"; an escaped character is a class of its own."""
    tokens, at = [], 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\" and at + 1 < len(pattern):
            tokens.append("\\" + pattern[at + 1])
            at += 2
        elif letter == "[" and (end := pattern.find("]", at + 2)) > 0:
            tokens.append(pattern[at : end + 1])
            at = end + 1
        else:
            if letter != "*" or not tokens or tokens[-1] != "*":
                tokens.append(letter)
            at += 1
    return tokens


def _fits(token: str, letter: str) -> bool:
    if token == "?":
        return True
    if len(token) == 1:
        return token == letter
    if token[0] == "\\":
        return token[1] == letter
    inside = token[1:-1]
    is_negated = inside[:1] in ("^", "!")
    inside = inside[is_negated:]
    found, at = False, 0
    while at < len(inside):
        if inside[at + 1 : at + 2] == "-" and at + 2 < len(inside):
            found = found or inside[at] <= letter <= inside[at + 2]
            at += 3
        else:
            found = found or inside[at] == letter
            at += 1
    return found != is_negated
