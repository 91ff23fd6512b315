"""Tables: what each checker takes for the same."""

from __future__ import annotations

import pytest

from warmcell import Case, ExecResult, InvalidRequest
from warmcell.judging.checkers import CHECKERS, checker_for, number

#: Expected, printed, and which checkers accept it.
TABLE = [
    ("1 2\n", "1 2\n", {"exact", "trim", "tokens", "number"}),
    ("1 2\n", "1 2", {"trim", "tokens", "number"}),
    ("1 2\n", "1 2  \t\r\n\n\n", {"trim", "tokens", "number"}),
    ("1 2\n", " 1 2\n", {"tokens", "number"}),
    ("1 2\n", "1  2\n", {"tokens", "number"}),
    ("1 2\n", "1\n2\n", {"tokens", "number"}),
    ("a\nb\n", "a\n\nb\n", {"tokens", "number"}),
    ("1 2\n", "1\n", set()),
    ("1 2\n", "1 2 3\n", set()),
    ("1 2\n", "2 1\n", set()),
    ("", "", {"exact", "trim", "tokens", "number"}),
    ("", "\n \n", {"trim", "tokens", "number"}),
    ("x", "", set()),
    ("", "x", set()),
    ("0.5", "0.50000001", {"number"}),
    ("0.5", "5e-1", {"number"}),
    ("0.5", ".51", set()),
    ("1000000", "1000000.5", {"number"}),
    ("1000000", "1000002", set()),
    ("0", "-0.0", {"number"}),
    ("0", "0.0000005", {"number"}),
    ("1e400", "1e500", set()),
    ("nan", "nan", {"exact", "trim", "tokens", "number"}),
    ("nan", "NaN", set()),
    ("inf", "1e999", set()),
    ("1_0", "10", set()),
    ("yes 1.0", "yes 1", {"number"}),
    ("yes 1.0", "no 1.0", set()),
    ("\u00e9", "\u00e9\n", {"trim", "tokens", "number"}),
]


@pytest.mark.parametrize(("expected", "printed", "accept"), TABLE)
def test_who_takes_it_for_the_same(expected: str, printed: str, accept: set[str]) -> None:
    case, result = Case("", expected), ExecResult(stdout=printed)
    assert {name for name, check in CHECKERS.items() if check(case, result)} == accept


def test_bytes_are_compared_as_bytes() -> None:
    result = ExecResult(stdout="\ufffd", stdout_bytes=b"\xff")
    assert CHECKERS["exact"](Case(b"", b"\xff"), result)
    assert not CHECKERS["exact"](Case("", "\ufffd"), result)


@pytest.mark.parametrize(("tolerance", "accepts"), [(0, False), (0.001, False), (0.01, True), (2, True)])
def test_a_tolerance_can_be_given(tolerance: float, accepts: bool) -> None:
    assert number(tolerance)(Case("", "1.0"), ExecResult(stdout="1.009")) is accepts


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), True, "1"])
def test_what_is_no_tolerance_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidRequest):
        number(wrong)  # type: ignore[arg-type]


def test_checkers_by_name_or_ones_own() -> None:
    def own(case: Case, result: ExecResult) -> bool:
        return True

    assert checker_for(own) is own
    for wrong in ("fuzzy", None, 3):
        with pytest.raises(InvalidRequest) as caught:
            checker_for(wrong)
        assert caught.value.field == "checker"
