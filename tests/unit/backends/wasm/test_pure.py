"""The parts of the WASM room that decide without doing: what code is, what output becomes, what an answer means."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.backends.wasm.frames import ProtocolViolation
from warmcell.backends.wasm.module_source import source_from_code
from warmcell.backends.wasm.outcome import (
    Captured,
    Ending,
    as_text,
    cut_at_character,
    deliver,
    ending_from,
    enforced,
    result_of,
)
from warmcell.backends.wasm.run_request import Preopen, RunRequest
from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, FuelExhausted, InvalidRequest, MemoryExceeded

MODULE = b"\0asm\1\0\0\0"
REQUEST = RunRequest(("x",), 7, 64, fuel=9)
ANSWER = {"op": "done", "kind": "exit", "exit_code": 3, "message": "", "memory_bytes": 65536, "cpu": 0.5}


@pytest.mark.parametrize(
    ("code", "form"),
    [
        (MODULE, "wasm"),
        (base64.b64encode(MODULE).decode(), "wasm"),
        ("AGFz\nbQEA\nAAA=\n", "wasm"),
        (" (module)", "wat"),
        (";; a comment\n(module)", "wat"),
        (b"(module)", "wat"),
    ],
)
def test_the_three_forms(code: str | bytes, form: str) -> None:
    source = source_from_code(code)
    assert source.format == form
    assert not source.is_own


def test_the_same_module_has_the_same_digest_in_every_form() -> None:
    assert source_from_code(MODULE).digest == source_from_code(base64.b64encode(MODULE).decode()).digest


@pytest.mark.parametrize("code", [b"MZ", b"\0asm\2\0\0\0", "not a module", "====", b"", "QUJD"])
def test_what_is_no_module_is_refused(code: str | bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        source_from_code(code)
    assert caught.value.field == "code"


@given(st.text(max_size=30), st.integers(0, 60))
def test_cut_text_is_whole_characters(text: str, at: int) -> None:
    data = text.encode("utf-8", "ignore")
    cut = cut_at_character(data[:at])
    assert data.startswith(cut)
    assert len(data[:at]) - len(cut) < 4
    cut.decode()


def test_bytes_that_are_no_text_are_not_cut_for_ever() -> None:
    assert cut_at_character(b"\x80" * 10) == b"\x80" * 10
    assert as_text(b"\xff", False) == "�"


@pytest.mark.parametrize(
    "wrong",
    [
        {"op": "ready"},
        {"kind": "great"},
        {"kind": 1},
        {"exit_code": -1},
        {"exit_code": 256},
        {"exit_code": True},
        {"exit_code": "0"},
        {"message": None},
        {"memory_bytes": 1.5},
        {"cpu": "fast"},
    ],
)
def test_an_impossible_answer_is_a_violation(wrong: dict[str, object]) -> None:
    with pytest.raises(ProtocolViolation):
        ending_from({**ANSWER, **wrong})
    with pytest.raises(ProtocolViolation):
        ending_from({key: value for key, value in ANSWER.items() if key not in wrong} | {"op": ""})


def test_a_possible_answer() -> None:
    assert ending_from(ANSWER) == Ending("exit", 3, "", 65536, 0.5)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("timeout", ExecutionTimeout), ("memory", MemoryExceeded), ("fuel", FuelExhausted), ("cpu", ExecutionTimeout)],
)
def test_a_limit_raises_with_the_partial_result(kind: str, error: type[Exception]) -> None:
    ending = Ending(kind)
    result = result_of(ending, Captured(b"so far", False), Captured(b"", False), 1.0, REQUEST, "1")
    assert (result.stdout, result.exit_code) == ("so far", 137)
    with pytest.raises(error) as caught:
        deliver(ending, result, REQUEST)
    assert caught.value.result is result  # type: ignore[attr-defined]


def test_our_own_failure_is_an_error() -> None:
    result = result_of(Ending("failed"), Captured(b"", False), Captured(b"", False), 1.0, REQUEST, "1")
    with pytest.raises(ExecutionFailed, match="why"):
        deliver(Ending("failed", message="why"), result, REQUEST)


def test_the_note_of_a_trap_comes_after_what_the_guest_said() -> None:
    ending = Ending("trap", 1, "wasm trap: it broke")
    result = result_of(ending, Captured(b"", False), Captured(b"said", False), 1.0, REQUEST, "1")
    assert result.stderr == "said\nwasm trap: it broke\n"


def test_what_held_is_said() -> None:
    closed = enforced(RunRequest(("x",), 1, 64), "50")
    assert (closed.filesystem_read, closed.network, closed.disk) == ("no filesystem", "no sockets", "nothing writable")
    opened = enforced(RunRequest(("x",), 1, 64, preopens=[Preopen("/a", "/a", True)], fetch=lambda raw: raw), "50")
    assert (opened.filesystem_read, opened.network, opened.disk) == ("wasi preopens", "host call", None)


@pytest.mark.parametrize(
    "fields",
    [
        {"argv": ()},
        {"argv": ("a\0",)},
        {"timeout": 0},
        {"fuel": 0},
        {"env": {"A=": "x"}},
        {"preopens": [Preopen("/a\0", "/a")]},
        {"preopens": [Preopen("/a", "/a\0")]},
    ],
)
def test_requests_are_checked(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        RunRequest(**{"argv": ("x",), "timeout": 1, "memory_limit_mb": 64, **fields})  # type: ignore[arg-type]
