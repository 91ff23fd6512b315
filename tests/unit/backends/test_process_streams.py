"""What the process backend adds to the contract of `stream`: line buffering, compilers, one listener per run."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator

import pytest

from warmcell import ExecRequest, ExecResult, ProcessBackend, ResultEvent
from warmcell.cage.wire import GuestJob, encode_job

pytestmark = [pytest.mark.needs("linux", "user namespaces")]


@pytest.fixture(scope="module")
def backend() -> Iterator[ProcessBackend]:
    with ProcessBackend(enforcer="native") as made:
        yield made


def heard(backend: ProcessBackend, request: ExecRequest) -> tuple[bytes, bytes, ExecResult]:
    streams = {"stdout": b"", "stderr": b""}
    for event in backend.stream_blocking(request):
        if isinstance(event, ResultEvent):
            return streams["stdout"], streams["stderr"], event.result
        streams[event.stream] += event.data
    raise AssertionError("there was no last event")


def test_python_writes_line_by_line_while_somebody_listens_and_only_then(backend: ProcessBackend) -> None:
    request = ExecRequest("python", "import sys; print(sys.stdout.line_buffering)", 20)
    assert heard(backend, request)[0] == b"True\n"
    assert backend.execute_blocking(request).stdout == "False\n"


def test_a_printed_line_is_there_before_the_program_ends(backend: ProcessBackend) -> None:
    async def first() -> bytes:
        code = "import time\nprint('line')\nprint('rest', end='')\ntime.sleep(60)"
        events = backend.stream(ExecRequest("python", code, 60))
        event = await anext(events)
        await events.aclose()  # type: ignore[attr-defined]
        return event.data  # type: ignore[union-attr]

    assert asyncio.run(asyncio.wait_for(first(), 50)) == b"line\n"


def test_a_caller_answers_while_the_guest_runs(backend: ProcessBackend) -> None:
    reader, writer = os.pipe()
    code = "for _ in range(3): print('more', input())\nprint('end', input())"
    heard: list[bytes] = []
    with os.fdopen(reader, "rb") as source, os.fdopen(writer, "wb", buffering=0) as answers:
        answers.write(b"0\n")
        for event in backend.stream_blocking(ExecRequest("python", code, 50), stdin=source.fileno()):
            if isinstance(event, ResultEvent):
                assert event.result.stdout == "more 0\nmore 1\nmore 2\nend 3\n"
                break
            heard.append(event.data)
            answers.write(f"{len(heard)}\n".encode())
    assert len(heard) == 4, "each line arrived before the next could be requested"


def test_a_job_without_a_listener_is_sent_as_before() -> None:
    job = GuestJob("python", (), {}, "/code", {"main.py": b"1"}, "main.py")
    assert b"heard" not in encode_job(job)
    assert b"is_streamed" in encode_job(job._replace(is_streamed=True))


@pytest.mark.needs("rustc")
def test_a_compiler_is_heard_only_where_its_words_are_the_outcome(backend: ProcessBackend) -> None:
    warned = 'fn main() { let unused = 1; println!("ran"); }'
    out, err, result = heard(backend, ExecRequest("rust", warned, 60))
    assert (out, err, result.stderr) == (b"ran\n", b"", "")
    _, err, result = heard(backend, ExecRequest("rust", "fn main() { nothing(); }", 60))
    assert b"nothing" in err
    assert (err, result.ok) == (result.stderr_bytes, False)


def test_streams_at_once_do_not_mix(backend: ProcessBackend) -> None:
    async def one(number: int) -> bytes:
        code = f"import time\nfor _ in range(5):\n    print({number}, flush=True)\n    time.sleep(0.02)"
        events = backend.stream(ExecRequest("python", code, 60))
        return b"".join([event.data async for event in events if not isinstance(event, ResultEvent)])

    async def all_of_them() -> list[bytes]:
        return await asyncio.gather(*map(one, range(6)))

    assert asyncio.run(all_of_them()) == [f"{number}\n".encode() * 5 for number in range(6)]


def test_a_run_with_listeners_is_recorded_like_any_other(
    backend: ProcessBackend, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="warmcell"):
        list(backend.stream_blocking(ExecRequest("python", "raise SystemExit(3)", 20)))
    (record,) = [record for record in caplog.records if record.name == "warmcell"]
    assert json.dumps(record.exit_code) == "3"  # type: ignore[attr-defined]
