"""The checkers of the known formats."""

from __future__ import annotations

import tracemalloc

import pytest

from warmcell import Case, ExecResult
from warmcell.evaluation.checkers import has_passed_tests, json_value, json_value_in_list, last_line, words


@pytest.mark.parametrize(
    ("printed", "expected", "is_right"),
    [
        ("1.50 x\n", "1.5 x", True),
        ("1", "1.0", True),
        ("9007199254740993", "9007199254740992", False),
        ("0.3333333", "0.3333334", False),
        ("1 2", "1", False),
        ("1", "1 2", False),
        ("nan", "nan", True),
        ("inf", "1e999999", False),
        ("1e999999999", "2.5", False),
        ("1_0", "10", False),
        ("9" * 5000, "1", False),
        ("é", "1", False),
    ],
)
def test_words(printed: str, expected: str, is_right: bool) -> None:
    assert words()(Case(expected=expected), ExecResult(printed)) is is_right


def test_a_tolerance_is_for_fractions_only() -> None:
    close = words("1e-6")
    assert close(Case(expected="0.3333334"), ExecResult("0.3333333"))
    assert not close(Case(expected="10000000"), ExecResult("10000001"))


@pytest.mark.parametrize(
    ("printed", "expected", "is_right"),
    [
        ("noise\n[1, 2]\n", "[1, 2]", True),
        ("[1, 2]\nnoise", "[1, 2]", False),
        ("[1.0000001]", "[1.0]", True),
        ("[1.5]", "[Infinity]", False),
        ("[Infinity]", "[Infinity]", True),
        ("[-Infinity]", "[Infinity]", False),
        (f"[1{'0' * 400}]", "[1.5]", False),
        ("1", "true", False),
        ("1" + "0" * 400, "1.5", False),
        ('{"a": [1]}', '{"a": [1]}', True),
        ('{"a": 1}', '{"b": 1}', False),
        ("[" * 100_000, "[1]", False),
        ("", "null", False),
    ],
)
def test_json_value(printed: str, expected: str, is_right: bool) -> None:
    assert json_value(Case(expected=expected), ExecResult(printed)) is is_right


@pytest.mark.parametrize(
    ("printed", "expected", "is_right"),
    [
        ("3", "[3]", True),
        ("[3]", "[3]", True),  # the result is itself a list of one
        ("[3]", "[[3]]", True),
        ("[1, 2]", "[1, 2]", True),
        ("1", "[1, 2]", False),
        ("3", "3", True),
        ("[]", "[]", True),
        ("4", "[3]", False),
        ("3 4", "[3]", False),
    ],
)
def test_json_value_in_list(printed: str, expected: str, is_right: bool) -> None:
    assert json_value_in_list(Case(expected=expected), ExecResult(printed)) is is_right


def test_the_last_line_decides() -> None:
    assert last_line(Case(expected="word"), ExecResult("hello\nword\n\n"))
    assert not last_line(Case(expected="word"), ExecResult("word\nhello"))
    assert not last_line(Case(expected="word"), ExecResult(""))


def test_every_named_test_must_pass() -> None:
    report = "PASSED a.py::one\nFAILED a.py::two - assert 1\nXFAIL a.py::three - reason\n"
    assert has_passed_tests(Case(expected="a.py::one\na.py::three"), ExecResult(report))
    assert not has_passed_tests(Case(expected="a.py::one\na.py::two"), ExecResult(report))


@pytest.mark.parametrize(
    ("report", "is_right"),
    [
        ("PASSED a.py::one\nERROR a.py::one - its teardown failed\n", False),
        ("PASSED a.py::one\nFAILED a.py::one - a test printed the first line\n", False),
        ("ERROR a.py::another - fixture\nPASSED a.py::one\n", True),
        ("ERROR    root:a.py:1 a.py::one\nPASSED a.py::one\n", True),  # a log line
    ],
)
def test_a_test_that_is_also_listed_as_failed_has_not_passed(report: str, is_right: bool) -> None:
    assert has_passed_tests(Case(expected="a.py::one"), ExecResult(report)) is is_right


def test_names_that_a_sample_invents_are_not_kept() -> None:
    """A report may have 64 MiB, and a sample can print any: three names for each line took gigabytes."""
    lines = [f"PASSED a.py::{number}[x - y z] - reason" for number in range(20_000)]
    result = ExecResult("\n".join([*lines, "PASSED a.py::one"]))
    tracemalloc.start()
    try:
        assert has_passed_tests(Case(expected="a.py::one"), result)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20  # the lines themselves take 2 MB


@pytest.mark.parametrize(
    ("wanted", "is_right"),
    [
        ("a.py::one[x - y]", True),
        ("a.py::one[x", True),  # as SWE-bench's records have it
        ("a.py::one[y z]", True),
        ("a.py::two[y", False),  # one of the two that it fits failed
        ("a.py::two[y z]", True),
        ("a.py::two[y w]", False),
    ],
)
def test_names_with_spaces(wanted: str, is_right: bool) -> None:
    report = "PASSED a.py::one[x - y]\nPASSED a.py::one[y z]\nPASSED a.py::two[y z]\nFAILED a.py::two[y w] - assert 1\n"
    assert has_passed_tests(Case(expected=wanted), ExecResult(report)) is is_right
