"""Wildcards of Dockerfiles and .dockerignore files. Pure.

Like Go's `filepath.Match`, with `**` for any number of directories. Regular expressions are not used: patterns are
untrusted, and matching must not take exponential time.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

from warmcell.core.errors import InvalidRequest

_WILD = frozenset("*?[\\")
_MOST_PATTERNS, _MOST_CHARACTERS = 10_000, 4096
#: The steps allowed: initially, and more for each path. Ordinary files need hundreds for each path, or thousands.
_FIRST_WORK, _WORK_PER_PATH = 10_000_000, 200_000
#: The same for one wildcard and each name. A name has 255 characters at most.
_WORK_PER_NAME = 2000


def has_wildcard(text: str) -> bool:
    return not _WILD.isdisjoint(text)


def _match(tokens: Sequence[str], name: str) -> tuple[bool, int]:
    """Whether the name matches, and how many steps that took.

    Backtracks to the last star only, which is enough and takes no exponential time.
    """
    at = token = steps = 0
    star, resume = -1, 0
    while at < len(name):
        steps += len(tokens[token]) if token < len(tokens) else 1  # a class is compared letter by letter
        if token < len(tokens) and tokens[token] == "*":
            star, resume = token, at
            token += 1
        elif token < len(tokens) and _fits(tokens[token], name[at]):
            token, at = token + 1, at + 1
        elif star >= 0:
            resume += 1
            token, at = star + 1, resume
        else:
            return False, steps
    return all(rest == "*" for rest in tokens[token:]), steps


class Wildcard:
    """One name with wildcards, which is compared with the names of a directory."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > _MOST_CHARACTERS:
            raise InvalidRequest(f"a wildcard has more than {_MOST_CHARACTERS} characters", field="sources")
        self._tokens = _tokens(pattern)
        self._work = -_FIRST_WORK

    def matches(self, name: str) -> bool:
        is_match, steps = _match(self._tokens, name)
        self._work += steps - _WORK_PER_NAME
        if self._work > 0:
            raise InvalidRequest("a wildcard takes too much time", field="sources", hint="use fewer '*'")
        return is_match


class _Pattern:
    """One parsed pattern."""

    def __init__(self, text: str) -> None:
        #: For each part "**", a name without wildcards, or tokens.
        self._parts = [part if part == "**" or not has_wildcard(part) else _tokens(part) for part in text.split("/")]

    def fits(self, path: Sequence[str]) -> tuple[bool, int]:
        """Whether the path or a directory above it matches, and how many steps that took."""
        fitting, work = {0}, 0  # how many parts of the path the pattern so far can match
        for part in self._parts:
            work += len(fitting)
            if part == "**":
                fitting = set(range(min(fitting), len(path) + 1))
            else:
                compared = {at: _compare_part(part, path[at]) for at in fitting if at < len(path)}
                work += sum(steps for _, steps in compared.values())
                fitting = {at + 1 for at, (is_match, _) in compared.items() if is_match}
            if not fitting:
                break
        return max(fitting, default=0) > 0, work


def _compare_part(part: str | list[str], name: str) -> tuple[bool, int]:
    return (part == name, 0) if isinstance(part, str) else _match(part, name)


class IgnoreRules:
    """The patterns of a .dockerignore file: the last one that matches decides, and "!" makes an exception."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._rules: list[tuple[_Pattern, bool]] = []
        self._work = -_FIRST_WORK
        for line in lines:
            text = line.strip()
            if not text or line.startswith("#"):
                continue
            is_exception = text.startswith("!")
            cleaned = posixpath.normpath(text[is_exception:].strip()).strip("/")
            if len(text) > _MOST_CHARACTERS or len(self._rules) >= _MOST_PATTERNS:
                raise InvalidRequest("the .dockerignore file is too large", field="context_dir")
            if cleaned not in ("", "."):
                self._rules.append((_Pattern(cleaned), is_exception))

    @property
    def has_exceptions(self) -> bool:
        """Whether files in an ignored directory may be included after all."""
        return any(is_exception for _, is_exception in self._rules)

    def ignores(self, path: str) -> bool:
        """A pattern that matches a directory matches everything in it."""
        if not self._rules or not path:
            return False
        parts = path.split("/")
        is_ignored = False
        self._work -= _WORK_PER_PATH
        for pattern, is_exception in self._rules:
            if is_ignored != is_exception:
                continue
            fits, work = pattern.fits(parts)
            is_ignored ^= fits
            self._work += work
            if self._work > 0:
                reason = "the patterns of .dockerignore take too much time"
                raise InvalidRequest(reason, field="context_dir", hint="use fewer '**'")
        return is_ignored


def _tokens(pattern: str) -> list[str]:
    """Split into single characters, "*", "?", classes "[...]" and escaped characters."""
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
