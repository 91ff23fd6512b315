"""The parts of the WASM room that decide without doing: what code is, what output becomes, what an answer means."""

from __future__ import annotations

import base64
import json
import math

import pytest

from warmcell.backends.wasm.frames import ENDING, MAX_TEXT_BYTES, Frame, ProtocolViolation
from warmcell.backends.wasm.module_source import source_from_code
from warmcell.backends.wasm.outcome import Ending, Terms, deliver, ending_from, what_held
from warmcell.backends.wasm.questions import fetch_request
from warmcell.backends.wasm.run_request import Preopen, RunRequest
from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, FuelExhausted, InvalidRequest, MemoryExceeded
from warmcell.core.types import ExecResult, Usage
from warmcell.runner.streams import Capture

MODULE = b"\0asm\1\0\0\0"
REQUEST = RunRequest(("x",), 7, 64, fuel=9, cpu_seconds=2)
TERMS = Terms(REQUEST, 0.25, 1.0, what_held(REQUEST, "wasm", "50"))
ANSWER = ENDING.pack(0, 3, 65536, 0.5)


def captured(data: bytes) -> Capture:
    capture = Capture(100)
    capture.add(data)
    return capture


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


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        ANSWER[:-1],
        ENDING.pack(6, 3, 65536, 0.5),
        ENDING.pack(0, 3, 65536, -1.0),
        ENDING.pack(0, 3, 65536, math.nan),
        ENDING.pack(0, 3, 65536, math.inf),
        ANSWER + bytes(MAX_TEXT_BYTES),
    ],
)
def test_an_impossible_answer_is_a_violation(wrong: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        ending_from(wrong)


def test_a_possible_answer() -> None:
    assert ending_from(ANSWER) == Ending("exit", 3, "", 65536, 0.5)
    assert ending_from(ANSWER + b"why\xff") == Ending("exit", 3, "why\ufffd", 65536, 0.5)


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("timeout", ExecutionTimeout, "after 7 s$"),
        ("cpu", ExecutionTimeout, "after 2 s of cpu time$"),
        ("memory", MemoryExceeded, "64 MB"),
        ("fuel", FuelExhausted, "9"),
    ],
)
def test_a_limit_raises_with_the_partial_result(kind: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        deliver(Ending(kind, message="of ours", cpu=2.5), captured(b"so far"), captured(b""), TERMS)
    result = caught.value.result  # type: ignore[attr-defined]
    assert result == ExecResult(
        stdout="so far",
        exit_code=137,
        duration=1.0,
        queued=0.25,
        stdout_bytes=b"so far",
        usage=Usage(2.5, 1.0, 0),
        enforced=TERMS.enforced,
    )


def test_our_own_failure_is_an_error_and_nobody_elses() -> None:
    with pytest.raises(ExecutionFailed, match="why") as caught:
        deliver(Ending("failed", message="why"), captured(b""), captured(b""), TERMS)
    assert caught.value.fault == "host"


def test_the_note_of_a_trap_comes_after_what_the_guest_said() -> None:
    result = deliver(Ending("trap", 1, "wasm trap: it broke"), captured(b""), captured(b"said"), TERMS)
    assert (result.exit_code, result.stderr) == (1, "said\nwasm trap: it broke\n")


def test_what_held_is_said() -> None:
    closed = what_held(RunRequest(("x",), 1, 64), "wasm", "50")
    assert (closed.filesystem_read, closed.network, closed.disk) == ("no filesystem", "no sockets", "nothing writable")
    request = RunRequest(("x",), 1, 64, preopens=[Preopen("/a", "/a", True)], fetch=lambda raw: raw)
    opened = what_held(request, "wasm", "50")
    assert (opened.filesystem_read, opened.network, opened.disk) == ("wasi preopens", "host call", None)
    assert (opened.isolation_class, opened.enforcer) == ("wasm", "wasmtime 50")


@pytest.mark.parametrize(
    ("fields", "body", "expected"),
    [
        ({"url": "u"}, b"", {"url": "u"}),
        ({"url": "u", "has_body": True}, b"x", {"url": "u", "body": "eA=="}),
        ({"url": "u", "unknown": [[]], "method": "PUT"}, b"y", {"url": "u", "method": "PUT"}),
        ({"url": "u", "timeout": 2, "follow_redirects": False}, b"", None),
        ({"url": "u", "headers": {"A": "b"}}, b"", None),
    ],
)
def test_a_fetch_is_built_from_known_fields(
    fields: dict[str, object], body: bytes, expected: dict[str, object] | None
) -> None:
    assert json.loads(fetch_request(Frame(fields, body))) == (expected or fields)


@pytest.mark.parametrize(
    "wrong", [{"url": 1}, {"headers": []}, {"headers": {"A": []}}, {"timeout": True}, {"follow_redirects": 1}]
)
def test_a_fetch_of_wrong_types_is_a_violation(wrong: dict[str, object]) -> None:
    with pytest.raises(ProtocolViolation):
        fetch_request(Frame({"url": "u", **wrong}))


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
