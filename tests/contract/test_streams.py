"""Output as it comes: in order, as much of it as the result has, no faster than it is read, and the run ends with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.contract.conftest import Kind
from tests.contract.processes import descriptors
from tests.contract.programs import PAGE, Copy, Exit, Flood, Say, Sleep
from tests.helpers import PATIENCE, eventually

from warmcell import (
    BackendUnavailable,
    ExecRequest,
    ExecResult,
    ExecutionTimeout,
    InvalidRequest,
    Limits,
    OutputEvent,
    ResultEvent,
    SandboxError,
)


def collect_output(backend: Any, request: ExecRequest) -> tuple[bytes, bytes, ExecResult | SandboxError]:
    """Both streams as they were delivered, and how it ended."""
    streams = {"stdout": b"", "stderr": b""}
    try:
        for event in backend.stream_blocking(request):
            if isinstance(event, ResultEvent):
                return streams["stdout"], streams["stderr"], event.result
            streams[event.stream] += event.data
    except SandboxError as error:
        return streams["stdout"], streams["stderr"], error
    raise AssertionError("there was no last event")


def test_all_of_it_is_delivered_and_the_result_comes_last(kind: Kind, backend: Any) -> None:
    request = kind.request(Say("one "), Say("else", stream=2), Say("two"), Exit(3))
    *events, last = backend.stream_blocking(request)
    assert all(isinstance(event, OutputEvent) for event in events)
    assert b"".join(event.data for event in events if event.stream == "stdout") == b"one two"
    assert b"".join(event.data for event in events if event.stream == "stderr") == b"else"
    assert isinstance(last, ResultEvent)
    assert (last.result.stdout, last.result.stderr, last.result.exit_code) == ("one two", "else", 3)


def test_a_piece_comes_while_the_guest_still_runs(kind: Kind, backend: Any) -> None:
    async def first() -> tuple[Any, float]:
        async with aclosing(backend.stream(kind.request(Say("early"), Sleep(60), timeout=60))) as events:
            return await anext(events), time.monotonic()

    began = time.monotonic()
    event, came = asyncio.run(first())
    assert event == OutputEvent("stdout", b"early")
    assert came - began < 50


def test_leaving_the_iteration_ends_the_run(kind: Kind, frugal: Any) -> None:
    frugal.execute_blocking(kind.request(Say("what stays between runs is there now")))
    stays = kind.guests(frugal)
    before = descriptors()

    async def leave() -> None:
        async with aclosing(frugal.stream(kind.request(Say("x"), Sleep(60), timeout=60))) as events:
            await anext(events)

    asyncio.run(leave())
    assert eventually(lambda: kind.guests(frugal) <= stays)
    for _ in frugal.stream_blocking(kind.request(Say("x"), Sleep(60), timeout=60)):
        break
    assert eventually(lambda: kind.guests(frugal) <= stays)
    assert eventually(lambda: descriptors() <= before + 3), "the portal's loop has three"


def test_cancelling_the_reader_ends_the_run(kind: Kind, frugal: Any) -> None:
    frugal.execute_blocking(kind.request(Say("what stays between runs is there now")))
    stays = kind.guests(frugal)

    async def read() -> None:
        async for _ in frugal.stream(kind.request(Sleep(60), timeout=60)):
            pass

    async def cancel() -> None:
        reader = asyncio.create_task(read())
        await asyncio.sleep(0.5)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader

    asyncio.run(cancel())
    assert eventually(lambda: kind.guests(frugal) <= stays)


def test_what_a_limit_ended_raises_when_all_before_was_delivered(kind: Kind, backend: Any) -> None:
    out, err, end = collect_output(backend, kind.request(Say("so far"), Say("and", stream=2), Sleep(60), timeout=2))
    assert isinstance(end, ExecutionTimeout) and end.result is not None
    assert (out, err) == (b"so far", b"and") == (end.result.stdout_bytes, end.result.stderr_bytes)


def test_bytes_past_the_cap_are_not_delivered_and_no_character_is_split(kind: Kind, backend: Any) -> None:
    euros = ("€" * 400).encode()  # three bytes each
    limits = Limits(output_bytes=1000)
    out, _, end = collect_output(backend, kind.request(Say(euros), limits=limits))
    assert isinstance(end, ExecResult)
    assert end.stdout_truncated
    assert out == end.stdout_bytes == ("€" * 333).encode()
    out, _, end = collect_output(backend, kind.request(Say(euros[:1000]), limits=limits))
    assert isinstance(end, ExecResult)
    assert out == end.stdout_bytes == euros[:1000], "nothing was cut, so the odd byte is the guest's own"


def test_a_slow_reader_gets_everything_and_holds_the_guest_back(kind: Kind, backend: Any) -> None:
    pages = 64
    limits = Limits(output_bytes=pages * PAGE)

    async def read() -> tuple[int, Any]:
        size = 0
        async with aclosing(backend.stream(kind.request(Flood(pages), limits=limits, timeout=60))) as events:
            async for event in events:
                if isinstance(event, ResultEvent):
                    return size, event.result
                if not size:
                    await asyncio.sleep(1)
                size += len(event.data)
        raise AssertionError

    size, result = asyncio.run(read())
    assert size == len(result.stdout_bytes) == pages * PAGE
    if not kind.is_imaginary:
        assert result.duration > 0.8, "it could not end before somebody read on"


def test_a_reader_that_stays_away_does_not_keep_the_run_from_its_timeout(kind: Kind, backend: Any) -> None:
    async def read() -> None:
        async for _ in backend.stream(kind.request(Flood(None), limits=Limits(output_bytes=1 << 26), timeout=1)):
            await asyncio.sleep(0.2)  # all of it would take minutes

    with pytest.raises(ExecutionTimeout) as caught:
        asyncio.run(read())
    assert caught.value.result is not None
    assert caught.value.result.duration < PATIENCE


def test_what_cannot_be_run_raises_as_execute_does(kind: Kind, fresh: Callable[..., Any]) -> None:
    backend = fresh()
    with pytest.raises(InvalidRequest):
        list(backend.stream_blocking(ExecRequest("klingon", "qapla", 5)))
    backend.close()
    with pytest.raises(BackendUnavailable):
        list(backend.stream_blocking(kind.request(Say("x"))))


def test_a_built_program_can_be_streamed(kind: Kind, backend: Any) -> None:
    with backend.build_blocking(kind.request(Say("h\u00e9"), Say("err", stream=2), Copy(), Exit(3))) as program:
        said: dict[str, list[str]] = {"out": [], "err": []}
        result = program.run_blocking("in", on_stdout=said["out"].append, on_stderr=said["err"].append)
        assert ("".join(said["out"]), "".join(said["err"])) == (result.stdout, result.stderr) == ("h\u00e9in", "err")
        *events, last = program.stream_blocking("x")
        assert b"".join(event.data for event in events if event.stream == "stdout") == "h\u00e9x".encode()
        assert (last.result.stdout, last.result.exit_code) == ("h\u00e9x", 3)

        async def read_async() -> list[str]:
            heard: list[str] = []

            async def hear(text: str) -> None:
                heard.append(text)

            await program.run("y", on_stdout=hear)
            return heard

        assert "".join(asyncio.run(read_async())) == "h\u00e9y"


def test_who_raises_while_hearing_a_built_program_ends_the_run(kind: Kind, frugal: Any) -> None:
    with frugal.build_blocking(kind.request(Say("x"), Sleep(60), timeout=60)) as program:
        stays = kind.guests(frugal)
        with pytest.raises(ZeroDivisionError):
            program.run_blocking(on_stdout=lambda text: 1 / 0)
        assert eventually(lambda: kind.guests(frugal) <= stays)
        with pytest.raises(InvalidRequest, match="on_stderr: must be callable"):
            program.run_blocking(on_stderr="no function")


def test_a_descriptor_as_input_is_taken_or_refused_by_its_name(kind: Kind, backend: Any, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"from a file")
    with open(tmp_path / "input", "rb") as source:
        try:
            events = backend.stream_blocking(kind.request(Copy()), stdin=source.fileno())
        except InvalidRequest as refused:
            assert (refused.field, refused.fault) == ("stdin", "caller") and "ProcessBackend" in (refused.hint or "")
            assert backend.name in ("wasm", "fake", "ray")
            return
        assert list(events)[-1].result.stdout == "from a file" and backend.name == "process"
