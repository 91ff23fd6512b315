"""Compares a program's output with the expected output. Pure module."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from warmcell.core.errors import InvalidRequest
from warmcell.core.types import ExecResult
from warmcell.judging.verdicts import Case

Checker = Callable[[Case, ExecResult], bool]
DEFAULT_TOLERANCE = 1e-6


def exact(case: Case, result: ExecResult) -> bool:
    """Byte for byte."""
    return result.stdout_bytes == case.expected_bytes


def trim(case: Case, result: ExecResult) -> bool:
    """Line by line, ignoring white space at the end of lines and empty lines at the end."""
    return _lines(result.stdout_bytes) == _lines(case.expected_bytes)


def tokens(case: Case, result: ExecResult) -> bool:
    """Word by word, ignoring white space."""
    return result.stdout_bytes.split() == case.expected_bytes.split()


def number(tolerance: float = DEFAULT_TOLERANCE) -> Checker:
    """Word by word; numbers are equal if they differ by at most `tolerance`, absolutely or relatively."""
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise InvalidRequest("must be a number of at least 0", field="tolerance")

    def check(case: Case, result: ExecResult) -> bool:
        pairs = zip_longest(result.stdout_bytes.split(), case.expected_bytes.split())
        return all(_is_close(printed, expected, tolerance) for printed, expected in pairs)

    return check


CHECKERS: dict[str, Checker] = {"exact": exact, "trim": trim, "tokens": tokens, "number": number()}


def checker_for(checker: Any) -> Checker:
    """A checker by name, or the caller's own function."""
    if callable(checker):
        return checker  # type: ignore[no-any-return]
    if not isinstance(checker, str) or checker not in CHECKERS:
        hint = f"one of {', '.join(CHECKERS)}, or a function of case and result"
        raise InvalidRequest(f"unknown checker {checker!r}", field="checker", hint=hint)
    return CHECKERS[checker]


def _lines(text: bytes) -> list[bytes]:
    lines = [line.rstrip() for line in text.split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _is_close(printed: bytes | None, expected: bytes | None, tolerance: float) -> bool:
    if printed == expected:
        return True
    ours, theirs = _number(printed), _number(expected)
    if ours is None or theirs is None:
        return False
    return math.isclose(ours, theirs, rel_tol=min(tolerance, 1.0), abs_tol=tolerance)


def _number(word: bytes | None) -> float | None:
    """A finite number as programs print it. None for words and for numbers that overflow to infinity."""
    if word is None or b"_" in word:
        return None
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
