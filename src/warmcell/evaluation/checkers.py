"""Checkers of the known formats, beside those of `judging.checkers`. Pure module."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal, InvalidOperation
from itertools import zip_longest
from typing import Any

from warmcell.core.types import ExecResult
from warmcell.judging.checkers import Checker
from warmcell.judging.verdicts import Case
from warmcell.workspace.untrusted_files import parse_json

#: A longer number is compared as text: arithmetic on it would cost more than the run.
_LONGEST_NUMBER = 400
_PYTEST_LINE = re.compile(r"^(PASSED|XFAIL|FAILED|ERROR) (\S.*)$")


def last_line(case: Case, result: ExecResult) -> bool:
    """The last line that is not empty is the expected text."""
    return _last_line(result) == case.expected_bytes.decode("utf-8", "replace").strip()


def json_value(case: Case, result: ExecResult) -> bool:
    """The last line is JSON with the expected value. Numbers may differ by 1e-6; a tuple is printed as a list."""
    return _prints_one_of([json.loads(case.expected_bytes)], result)


def json_value_in_list(case: Case, result: ExecResult) -> bool:
    """As `json_value`; the expected value may also be in a list of one. Only some records of APPS have that list."""
    expected = json.loads(case.expected_bytes)
    inner = expected if isinstance(expected, list) and len(expected) == 1 else []
    return _prints_one_of([expected, *inner], result)


def words(tolerance: str = "0") -> Checker:
    """Word by word. Two words that are numbers may be written differently, and differ by `tolerance` unless both are
    whole numbers.
    """
    allowed = Decimal(tolerance)

    def check(case: Case, result: ExecResult) -> bool:
        pairs = zip_longest(result.stdout_bytes.split(), case.expected_bytes.split())
        return all(printed == expected or _is_close(printed, expected, allowed) for printed, expected in pairs)

    return check


def has_passed_tests(case: Case, result: ExecResult) -> bool:
    """Every test named in `expected`, one on each line, is listed as passed in pytest's summary (`-rA`), and none as
    failed: a test whose teardown fails is in both lists, and a test can print that it passed.

    SWE-bench's own records have names up to their first space; all tests that such a name fits must have passed.
    """
    wanted = set(case.expected_bytes.decode("utf-8", "replace").splitlines())
    passed, failed = set[str](), set[str]()
    for line in result.stdout.splitlines():
        if match := _PYTEST_LINE.match(line.rstrip()):
            names = wanted.intersection((match[2], match[2].partition(" - ")[0], match[2].split()[0]))
            (passed if match[1] in ("PASSED", "XFAIL") else failed).update(names)
    return wanted <= passed - failed


def _last_line(result: ExecResult) -> str:
    lines = result.stdout.strip().rsplit("\n", 1)
    return lines[-1].strip()


def _prints_one_of(expected: list[Any], result: ExecResult) -> bool:
    try:
        printed = parse_json(_last_line(result))
        return any(_is_same(printed, each) for each in expected)
    except (ValueError, OverflowError):  # not JSON, or a whole number that no float can hold
        return False


def _is_same(printed: Any, expected: Any) -> bool:
    if isinstance(printed, list) and isinstance(expected, list):
        return len(printed) == len(expected) and all(map(_is_same, printed, expected))
    if isinstance(printed, dict) and isinstance(expected, dict):
        return printed.keys() == expected.keys() and all(_is_same(printed[key], expected[key]) for key in expected)
    if isinstance(printed, float) or isinstance(expected, float):
        is_pair = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (printed, expected))
        return is_pair and _is_near(printed, expected)
    return type(printed) is type(expected) and bool(printed == expected)


def _is_near(printed: float, expected: float) -> bool:
    try:
        if math.isinf(printed) or math.isinf(expected):  # everything is near to infinity
            return printed == expected
        return abs(printed - expected) <= 1e-6 * max(1.0, abs(expected))
    except OverflowError:  # one is an integer that no float can be near to
        return False


def _is_close(printed: bytes | None, expected: bytes | None, allowed: Decimal) -> bool:
    ours, theirs = _number(printed), _number(expected)
    if ours is None or theirs is None:
        return False
    if ours == theirs:
        return True
    is_whole = not {b".", b"e", b"E"} & {bytes([byte]) for byte in (printed or b"") + (expected or b"")}
    far = max(abs(ours.adjusted()), abs(theirs.adjusted())) > _LONGEST_NUMBER  # a difference of a billion digits
    return not is_whole and not far and abs(ours - theirs) <= allowed * max(Decimal(1), abs(theirs))


def _number(word: bytes | None) -> Decimal | None:
    if word is None or len(word) > _LONGEST_NUMBER or b"_" in word:
        return None
    try:
        value = Decimal(word.decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError):
        return None
    return value if value.is_finite() else None
