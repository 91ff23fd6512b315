"""Callbacks at the end of a run: all of them, latest first, even if one raises."""

from __future__ import annotations

import pytest

from warmcell.core.light import Cleanup


def test_the_latest_first_and_each_once() -> None:
    done: list[int] = []
    with Cleanup() as cleanup:
        for number in range(3):
            cleanup.callback(lambda number=number: done.append(number))  # type: ignore[misc]
        assert done == []
    cleanup.close()
    assert done == [2, 1, 0]


def test_what_fails_keeps_no_other_from_its_turn() -> None:
    done: list[int] = []

    def fail(what: str) -> None:
        raise OSError(what)

    cleanup = Cleanup()
    cleanup.callback(lambda: done.append(0))
    cleanup.callback(lambda: fail("second"))
    cleanup.callback(lambda: done.append(1))
    cleanup.callback(lambda: fail("first"))
    with pytest.raises(OSError, match="second") as failure:
        cleanup.close()
    assert done == [1, 0] and str(failure.value.__context__) == "first"


def test_a_failure_inside_is_what_is_told() -> None:
    done: list[int] = []
    with pytest.raises(ValueError, match="inside"), Cleanup() as cleanup:
        cleanup.callback(lambda: done.append(0))
        raise ValueError("inside")
    assert done == [0]
