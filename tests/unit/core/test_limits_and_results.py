"""Limits, and what results say about themselves."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.core.errors import InvalidRequest
from warmcell.core.types import Denial, EffectiveLimits, Enforced, EnforcedLimits, ExecResult, Limits

WHOLE = ("memory_mb", "processes", "open_files", "disk_mb", "output_bytes")
NUMBERS = ("cpu_seconds", "cpus")


@pytest.mark.attack("PT-04")
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [0, -1, 1.0, math.nan, math.inf, "1", True, 1 << 50], ids=repr)
@pytest.mark.claim("WC-PT-1")
def test_whole_limits_refuse_everything_else(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Limits(**{name: value})  # type: ignore[arg-type]
    assert caught.value.field == name


@pytest.mark.attack("PT-04")
@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "1", True, 1e308], ids=repr)
def test_cpu_limits_are_positive_and_finite(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Limits(**{name: value})  # type: ignore[arg-type]
    assert caught.value.field == name


limits = st.builds(
    Limits,
    memory_mb=st.none() | st.integers(1, 4096),
    cpu_seconds=st.none() | st.floats(0.1, 100),
    processes=st.none() | st.integers(1, 500),
    open_files=st.integers(1, 5000),
    disk_mb=st.integers(1, 5000),
    output_bytes=st.integers(1, 1 << 24),
    cpus=st.none() | st.floats(0.1, 8),
)


def _as_number(value: Any) -> float:
    return math.inf if value is None else value


@given(limits, limits)
@pytest.mark.claim("WC-PT-2")
def test_a_cap_never_widens(wanted: Limits, ceiling: Limits) -> None:
    capped = wanted.cap_with(ceiling)
    for name in WHOLE + NUMBERS:
        smallest = min(_as_number(getattr(wanted, name)), _as_number(getattr(ceiling, name)))
        assert _as_number(getattr(capped, name)) == smallest


@given(limits)
def test_a_cap_by_itself_changes_nothing(same: Limits) -> None:
    assert same.cap_with(same) == same


def test_nothing_is_set_by_default() -> None:
    assert {getattr(Limits(), name) for name in WHOLE + NUMBERS} == {None}
    assert Limits(**dict.fromkeys(WHOLE + NUMBERS)) == Limits()


def test_the_default_limits() -> None:
    assert EffectiveLimits() == EffectiveLimits(512, None, 128, 1024, 256, 1_048_576, None)
    assert EffectiveLimits(memory_mb=7).as_limits() == Limits(7, None, 128, 1024, 256, 1_048_576, None)


@pytest.mark.claim("WC-PT-5")
def test_nothing_is_enforced_unless_somebody_says_so() -> None:
    assert not any(getattr(EnforcedLimits(), name) for name in EnforcedLimits.__dataclass_fields__)
    assert Enforced().isolation_class == "none"
    assert ExecResult().enforced == Enforced()


def test_text_without_bytes_gets_them() -> None:
    result = ExecResult(stdout="é", stderr="\udc80")
    assert result.stdout_bytes == b"\xc3\xa9"
    assert result.stderr_bytes


def test_bytes_that_were_given_stay() -> None:
    assert ExecResult(stdout="\ufffd", stdout_bytes=b"\xff").stdout_bytes == b"\xff"


@pytest.mark.parametrize(("status", "ok"), [(0, True), (1, False), (137, False)])
def test_ok_is_status_zero(status: int, ok: bool) -> None:
    assert ExecResult(exit_code=status).ok is ok


def test_a_result_as_json_holds_every_field_and_bytes_only_where_text_would_lie() -> None:
    result = ExecResult(
        stdout="é\n",
        stderr="\ufffd",
        stderr_bytes=b"\xff",
        exit_code=3,
        queued=0.25,
        denials=[Denial("a", "b", "c", "d")],
    )
    plain = result.to_dict()
    assert (plain["stdout"], plain["exit_code"], plain["queued"]) == ("é\n", 3, 0.25)
    assert plain["denials"] == [{"kind": "a", "what": "b", "rule": "c", "hint": "d"}]
    assert "stdout_base64" not in plain
    assert plain["stderr_base64"] == "/w=="
    assert json.loads(result.to_json()) == plain
    assert result.to_json().isascii()


def test_lone_surrogates_survive_as_json() -> None:
    assert json.loads(ExecResult(stdout="a\ud800").to_json())["stdout"] == "a\ud800"


def test_a_result_was_not_queued_unless_it_says_so() -> None:
    assert ExecResult().queued == 0.0
