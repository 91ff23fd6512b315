"""A request is checked once, when it is made, and the error names the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.core.errors import InvalidRequest
from warmcell.core.types import MAX_CODE_BYTES, MAX_TIMEOUT, ExecRequest, Language, Limits


def request(**changes: Any) -> ExecRequest:
    return ExecRequest(**{"language": Language.PYTHON, "code": "pass", "timeout": 5, **changes})


def refusal(**changes: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        request(**changes)
    return caught.value


def test_a_plain_request_keeps_what_it_was_given() -> None:
    made = request(language="rust", stdin="in", memory_limit_mb=64, env={"A": "1"}, limits=Limits(processes=3))
    assert (made.language, made.code, made.timeout, made.stdin) == (Language.RUST, "pass", 5.0, "in")
    assert (made.memory_limit_mb, dict(made.env), made.limits) == (64, {"A": "1"}, Limits(processes=3))


@pytest.mark.parametrize("language", Language)
def test_every_language_is_accepted_by_name(language: Language) -> None:
    assert request(language=language.value).language is language


@pytest.mark.attack("PT-02")
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"code": "print(1)\0"}, "code"),
        ({"code": "\0"}, "code"),
        ({"language": "pyth\0on"}, "language"),
        ({"env": {"A\0B": "x"}}, "env key"),
        ({"env": {"A": "x\0y"}}, "env['A']"),
    ],
)
@pytest.mark.claim("WC-PT-1")
def test_nul_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    error = refusal(**changes)
    assert error.field == field
    assert field in str(error)


@pytest.mark.parametrize("key", ["", "A=B", "="])
def test_bad_variable_names_are_refused(key: str) -> None:
    assert refusal(env={key: "x"}).field == "env key"


@pytest.mark.parametrize("env", [None, [], "A=1", 5, [("A", "1")]])
def test_env_must_be_a_mapping(env: object) -> None:
    assert refusal(env=env).field == "env"


@pytest.mark.parametrize("env", [{1: "x"}, {"A": 1}, {"A": None}, {"A": b"x"}, {"A": "\udc80"}, {"\ud800": "x"}])
def test_env_holds_text_only(env: Mapping[Any, Any]) -> None:
    assert "env" in str(refusal(env=env))


def test_env_is_copied_and_read_only() -> None:
    mine = {"A": "1"}
    made = request(env=mine)
    mine["A"] = "2"
    assert made.env["A"] == "1"
    with pytest.raises(TypeError):
        made.env["B"] = "3"  # type: ignore[index]


@pytest.mark.attack("PT-03")
@pytest.mark.parametrize("code", ["", " ", "\n\t  \r\n"])
def test_empty_code_is_refused(code: str) -> None:
    assert refusal(code=code).field == "code"


@pytest.mark.attack("PT-03")
@pytest.mark.claim("WC-PT-1")
def test_huge_code_is_refused_with_a_remedy() -> None:
    error = refusal(code="x" * (100 * 1024 * 1024))
    assert error.field == "code"
    assert error.hint


@pytest.mark.attack("PT-03")
def test_the_size_limit_counts_bytes_and_is_exact() -> None:
    assert request(code="x" * MAX_CODE_BYTES)
    assert refusal(code="x" * (MAX_CODE_BYTES + 1)).field == "code"
    assert refusal(code="é" * 6, max_code_bytes=11).field == "code"
    assert request(code="é" * 6, max_code_bytes=12)


@pytest.mark.attack("PT-03")
def test_a_million_lines_are_fine() -> None:
    assert request(code="pass\n" * 1_000_000)


@pytest.mark.parametrize("code", [None, 5, ["print"], b"print(1)", bytearray(b"x"), "\ud800"])
def test_code_must_be_text(code: object) -> None:
    assert refusal(code=code).field == "code"


def test_bytes_are_for_wasm() -> None:
    assert request(language="wasm", code=b"\0asm").code == b"\0asm"
    assert refusal(language="wasm", code=b"").field == "code"


BAD_NUMBERS = [0, -1, 0.0, -0.0, math.nan, math.inf, -math.inf, 1e308, "5", "", True, False, None, [], b"5", 5j]


@pytest.mark.attack("PT-04")
@pytest.mark.parametrize("timeout", BAD_NUMBERS, ids=repr)
@pytest.mark.claim("WC-PT-1")
def test_no_timeout_is_unlimited(timeout: object) -> None:
    assert refusal(timeout=timeout).field == "timeout"


@pytest.mark.attack("PT-04")
@given(st.one_of(st.integers(), st.floats(), st.none(), st.booleans(), st.text()))
def test_a_timeout_is_refused_or_bounded(timeout: Any) -> None:
    try:
        made = request(timeout=timeout)
    except InvalidRequest:
        return
    assert 0 < made.timeout <= MAX_TIMEOUT


@pytest.mark.attack("PT-04")
@pytest.mark.parametrize("memory", [0, -1, 1.5, math.nan, math.inf, "64", True, [], 1 << 40])
def test_memory_limits_are_whole_and_bounded(memory: object) -> None:
    assert refusal(memory_limit_mb=memory).field == "memory_limit_mb"


@pytest.mark.attack("PT-05")
@pytest.mark.parametrize(
    "language", ["../../bin/sh", "-c", "a b", "é", "x" * 41, "", " python", "python ", 42, None, True, [], b"python"]
)
@pytest.mark.claim("WC-PT-1")
def test_unknown_languages_are_refused(language: object) -> None:
    error = refusal(language=language)
    assert error.field == "language"
    assert "python" in str(error)


@pytest.mark.parametrize("stdin", [5, ["x"], True, bytearray(b"x")])
def test_stdin_is_text_or_bytes(stdin: object) -> None:
    assert refusal(stdin=stdin).field == "stdin"


@pytest.mark.parametrize(
    ("stdin", "expected"), [(None, b""), ("", b""), ("é", b"\xc3\xa9"), (b"\0\xff", b"\0\xff"), ("\0", b"\0")]
)
def test_stdin_bytes(stdin: str | bytes | None, expected: bytes) -> None:
    assert request(stdin=stdin).stdin_bytes == expected


def test_a_lone_surrogate_on_stdin_is_passed_on() -> None:
    assert request(stdin="\udc80").stdin_bytes == b"\xed\xb2\x80"


@pytest.mark.parametrize("limits", [{}, 5, "x", {"memory_mb": 5}])
def test_limits_must_be_limits(limits: object) -> None:
    assert refusal(limits=limits).field == "limits"


def test_a_request_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        request().timeout = 1e9  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("PY", Language.PYTHON),
        ("Python3", Language.PYTHON),
        ("node", Language.JAVASCRIPT),
        ("bash", Language.COMMAND),
        ("C++", Language.CPP),
        ("golang", Language.GO),
        ("sqlite3", Language.SQL),
        ("r", Language.R),
    ],
)
def test_aliases_become_the_languages_own_name(name: str, language: Language) -> None:
    assert ExecRequest(name, "0", 1).language is language


def test_a_language_of_another_package_keeps_its_name() -> None:
    assert ExecRequest("Brainfuck", "+", 1).language == "brainfuck"
