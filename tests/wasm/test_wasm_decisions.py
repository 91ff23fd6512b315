"""The pure functions of the WASM backend: recognising code, checking reports and host calls, making results."""

from __future__ import annotations

import base64
import json
import math
import struct
from pathlib import Path

import pytest

from warmcell.backends.wasm.channel import Frame
from warmcell.backends.wasm.run_request import (
    HostDirectory,
    Preopen,
    RunContext,
    RunRequest,
    enforcement,
    make_result,
    resolve_preopens,
    source_from_code,
)
from warmcell.backends.wasm.supervisor import fetch_request
from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, FuelExhausted, InvalidRequest, MemoryExceeded
from warmcell.core.types import MIB, ExecResult, Usage
from warmcell.guest.wasm.protocol import MAX_TEXT_BYTES, ExitReport, ProtocolViolation, RunLimits, decode_exit
from warmcell.runner.streams import Capture

MODULE = b"\0asm\1\0\0\0"
LIMITS = RunLimits(7, 64 * MIB, fuel=9, cpu_seconds=2)
REQUEST = RunRequest(("x",), LIMITS)
CONTEXT = RunContext(REQUEST, 0.25, 1.0, enforcement(REQUEST, "wasm", "50"))
EXIT = struct.Struct(">BBQd")
REPORT = EXIT.pack(0, 3, 65536, 0.5)


def capture_of(data: bytes) -> Capture:
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
def test_code_that_is_not_a_module_is_refused(code: str | bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        source_from_code(code)
    assert caught.value.field == "code"


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        REPORT[:-1],
        EXIT.pack(6, 3, 65536, 0.5),
        EXIT.pack(0, 3, 65536, -1.0),
        EXIT.pack(0, 3, 65536, math.nan),
        EXIT.pack(0, 3, 65536, math.inf),
        REPORT + bytes(MAX_TEXT_BYTES),
    ],
)
def test_an_exit_report_out_of_range_is_a_violation(wrong: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode_exit(wrong)


def test_an_exit_report() -> None:
    assert decode_exit(REPORT) == ExitReport("exit", 3, "", 65536, 0.5)
    assert decode_exit(REPORT + b"why\xff") == ExitReport("exit", 3, "why\ufffd", 65536, 0.5)


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
        make_result(
            ExitReport(kind, message="of ours", cpu_seconds=2.5), capture_of(b"so far"), capture_of(b""), CONTEXT
        )
    result = caught.value.result  # type: ignore[attr-defined]
    assert result == ExecResult(
        stdout="so far",
        exit_code=137,
        duration=1.0,
        queued=0.25,
        stdout_bytes=b"so far",
        usage=Usage(2.5, 1.0, 0),
        enforced=CONTEXT.enforced,
    )


@pytest.mark.parametrize("kind", ["exit", "trap"])
def test_a_guest_that_ended_past_its_processor_time_has_exceeded_it(kind: str) -> None:
    """The supervisor had no processor, or was in a listener, and accepted the answer."""
    with pytest.raises(ExecutionTimeout) as caught:
        make_result(ExitReport(kind, cpu_seconds=2.5), capture_of(b"so far"), capture_of(b""), CONTEXT)
    assert (caught.value.clock, caught.value.timeout) == ("cpu", 2)
    assert caught.value.result is not None and caught.value.result.stdout == "so far"
    within = make_result(ExitReport(kind, cpu_seconds=2.0), capture_of(b""), capture_of(b""), CONTEXT)
    assert within.usage.cpu_time == 2.0


def test_a_failure_of_the_worker_is_the_hosts_fault() -> None:
    with pytest.raises(ExecutionFailed, match="why") as caught:
        make_result(ExitReport("failed", message="why"), capture_of(b""), capture_of(b""), CONTEXT)
    assert caught.value.fault == "host"


def test_a_traps_message_follows_the_guests_stderr() -> None:
    result = make_result(ExitReport("trap", 1, "wasm trap: it broke"), capture_of(b""), capture_of(b"said"), CONTEXT)
    assert (result.exit_code, result.stderr) == (1, "said\nwasm trap: it broke\n")


def test_enforcement_names_the_mechanisms() -> None:
    closed = enforcement(RunRequest(("x",), RunLimits(1)), "wasm", "50")
    assert (closed.filesystem_read, closed.network, closed.disk) == ("no filesystem", "no sockets", "nothing writable")
    request = RunRequest(("x",), RunLimits(1), preopens=[Preopen("/a", "/a", True)], fetch=lambda raw: raw)
    opened = enforcement(request, "wasm", "50")
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
        {"limits": RunLimits(0)},
        {"limits": RunLimits(1, fuel=0)},
        {"env": {"A=": "x"}},
        {"preopens": [Preopen("/a\0", "/a")]},
        {"preopens": [Preopen("/a", "/a\0")]},
    ],
)
def test_requests_are_checked(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        RunRequest(**{"argv": ("x",), "limits": RunLimits(1), **fields})  # type: ignore[arg-type]


@pytest.mark.attack("S3-06")
def test_what_a_failed_worker_says_is_escaped() -> None:
    with pytest.raises(ExecutionFailed) as caught:
        make_result(ExitReport("failed", message="\x1b[31m\nhint: x"), capture_of(b""), capture_of(b""), CONTEXT)
    assert str(caught.value).isprintable()


def test_a_directory_is_resolved_again_when_a_read_only_path_in_it_was_replaced(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("in/kept", "new"):
        (tmp_path / name).write_text(name)
    preopen = Preopen(str(tmp_path.resolve()), "/work", True, ("in/kept",))
    known: dict[Preopen, HostDirectory] = {}
    before = resolve_preopens([preopen], known)
    (tmp_path / "in" / "other").write_text("x")
    assert resolve_preopens([preopen], known) == before
    (tmp_path / "new").rename(tmp_path / "in" / "kept")
    after = resolve_preopens([preopen], known)
    assert after != before and resolve_preopens([preopen], known) == after
