"""What goes in and what comes out: output, status, input, environment, caps, many at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.contract.conftest import Kind, Run
from tests.contract.programs import PAGE, Copy, Exit, Flood, Say, ShowEnvironment

from warmcell import Limits, SandboxBackend

MIB = 1 << 20


def test_it_is_a_backend(backend: Any, kind: Kind) -> None:
    assert isinstance(backend, SandboxBackend)
    assert kind.dialect.language in backend.capabilities().supported_languages


def test_both_streams_and_a_clean_end(run: Run) -> None:
    result = run(Say("out\n"), Say("err\n", stream=2))
    assert (result.stdout, result.stderr, result.exit_code, result.signal) == ("out\n", "err\n", 0, None)
    assert (result.stdout_truncated, result.stderr_truncated, result.ok) == (False, False, True)


@pytest.mark.parametrize("code", [0, 1, 3, 42, 127, 255])
def test_a_status_is_a_result_with_what_was_printed_before(run: Run, code: int) -> None:
    result = run(Say("before"), Exit(code))
    assert (result.stdout, result.exit_code, result.signal, result.ok) == ("before", code, None, code == 0)


@pytest.mark.attack("PT-01")
def test_bytes_that_are_no_text_are_kept_and_shown_as_replaced(run: Run) -> None:
    result = run(Say(b"a\xff\xfe\x00z"), Say(bytes(range(128, 256)), stream=2))
    assert (result.stdout_bytes, result.stderr_bytes) == (b"a\xff\xfe\x00z", bytes(range(128, 256)))
    assert result.stdout == "a\ufffd\ufffd\0z"


@pytest.mark.parametrize(
    ("stdin", "expected"),
    [("olleh", b"olleh"), (b"\x00\xff", b"\x00\xff"), ("\u00e9\n", b"\xc3\xa9\n"), (None, b"")],
    ids=["text", "bytes", "not ascii", "nothing is the end of file"],
)
def test_standard_input_is_fed(run: Run, stdin: str | bytes | None, expected: bytes) -> None:
    assert run(Copy(), stdin=stdin).stdout_bytes == expected


def test_ten_mib_in_and_out_do_not_deadlock(run: Run) -> None:
    data = bytes(range(256)) * (10 * MIB // 256)
    result = run(Copy(), stdin=data, timeout=60, limits=Limits(output_bytes=11 * MIB))
    assert (len(result.stdout_bytes), result.stdout_bytes == data, result.stdout_truncated) == (10 * MIB, True, False)


def test_a_guest_that_never_reads_its_input_ends(run: Run) -> None:
    assert run(Say("done"), stdin=b"x" * (10 * MIB)).stdout == "done"


@pytest.mark.attack("LK-01")
def test_a_guest_sees_the_variables_it_was_given_and_none_of_ours(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CANARY", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "host-secret-canary")
    seen = run(ShowEnvironment(), env={"GIVEN": "yes", "EMPTY": ""}).stdout.split("\0")
    assert {"GIVEN=yes", "EMPTY="} <= set(seen)
    assert not [item for item in seen if "canary" in item or item.startswith(("AWS_", "OPENAI_"))]


def test_variables_of_one_run_are_gone_in_the_next(run: Run) -> None:
    assert "ONCE=1" in run(ShowEnvironment(), env={"ONCE": "1"}).stdout
    assert "ONCE" not in run(ShowEnvironment()).stdout


@pytest.mark.attack("RX-09")
@pytest.mark.parametrize(("stream", "name", "other"), [(1, "stdout", "stderr"), (2, "stderr", "stdout")])
def test_output_is_capped_at_exactly_one_mib_for_each_stream(run: Run, stream: int, name: str, other: str) -> None:
    result = run(Flood(2 * MIB // PAGE, stream), Say("rest", stream=3 - stream))
    assert len(getattr(result, f"{name}_bytes")) == MIB
    assert (getattr(result, f"{name}_truncated"), getattr(result, f"{other}_truncated")) == (True, False)
    assert getattr(result, name) == "x" * MIB
    assert (getattr(result, other), result.exit_code) == ("rest", 0)


def test_exactly_the_cap_is_not_truncated(run: Run) -> None:
    result = run(Flood(MIB // PAGE))
    assert (len(result.stdout_bytes), result.stdout_truncated, result.stdout) == (MIB, False, "x" * MIB)


def test_the_cap_can_be_set_and_cuts_between_characters(run: Run) -> None:
    result = run(Say("\u00e4" * 100), limits=Limits(output_bytes=11))
    assert result.stdout_bytes == "\u00e4".encode() * 5
    assert result.stdout == "\u00e4" * 5


async def test_many_tasks_at_once_get_their_own_answers(kind: Kind, backend: Any) -> None:
    requests = [kind.request(Copy(), stdin=f"number {n}", timeout=60) for n in range(16)]
    results = await asyncio.gather(*map(backend.execute, requests))
    assert [result.stdout for result in results] == [f"number {n}" for n in range(16)]


def test_threads_with_event_loops_of_their_own_share_a_backend(run: Run) -> None:
    outputs: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda n=n: outputs.update({n: run(Say(str(n)), timeout=60).stdout})) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {n: str(n) for n in range(8)}


def test_the_blocking_way_is_the_same_way(kind: Kind, backend: Any) -> None:
    if not hasattr(backend, "execute_blocking"):
        pytest.skip("a backend need not have one")
    assert backend.execute_blocking(kind.request(Say("out"), Exit(3))).exit_code == 3
