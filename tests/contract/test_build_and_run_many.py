"""Built once and run often; many requests at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from tests.contract.conftest import Kind
from tests.contract.programs import Copy, Exit, Save, Say, ShowArguments, ShowFile, Sleep, Spin
from tests.helpers import PATIENCE, eventually

from warmcell import BackendUnavailable, BuildFailed, ExecRequest, ExecutionTimeout, InvalidRequest, Outcome


def test_a_program_is_built_once_and_run_with_what_each_run_gets(kind: Kind, backend: Any) -> None:
    with backend.build_blocking(kind.request(Copy(), ShowArguments(), stdin="own", args=["own"])) as program:
        assert program.run_blocking().stdout == "ownown\0"
        assert program.run_blocking(b"a", ["b", "c"]).stdout == "ab\0c\0"


def test_many_runs_of_a_program_at_once_share_nothing(kind: Kind, backend: Any) -> None:
    steps = (ShowFile("given"), Copy(), Save("left", "x"))

    async def all_runs() -> list[Any]:
        async with await backend.build(kind.request(*steps, files={"given": "g"}, fetch_files=["left"])) as program:
            return await asyncio.gather(*(program.run(str(n), timeout=60) for n in range(12)))

    results = asyncio.run(all_runs())
    assert [(result.stdout, result.files) for result in results] == [(f"g{n}", {"left": b"x"}) for n in range(12)]


def test_a_run_of_a_program_has_a_timeout_of_its_own(kind: Kind, backend: Any) -> None:
    with backend.build_blocking(kind.request(Say("x"), Spin(), timeout=60)) as program:
        with pytest.raises(ExecutionTimeout) as caught:
            program.run_blocking(timeout=0.5)
        assert (caught.value.timeout, caught.value.phase) == (0.5, "run")


def test_an_invalid_program_fails_to_build_and_it_is_the_guests_fault(kind: Kind, backend: Any) -> None:
    with pytest.raises(BuildFailed) as caught:
        backend.build_blocking(ExecRequest(kind.dialect.language, kind.dialect.nonsense, 20))
    error = caught.value
    assert (error.fault, error.retryable, error.result.ok) == ("guest", False, False)
    assert error.result.stderr.strip()


def test_a_closed_program_and_one_of_a_closed_backend_say_so(kind: Kind, fresh: Callable[..., Any]) -> None:
    backend = fresh()
    program, closed = backend.build_blocking(kind.request(Say("x"))), backend.build_blocking(kind.request(Say("x")))
    closed.close()
    with pytest.raises(InvalidRequest, match="closed"):
        closed.run_blocking()
    backend.close()
    with pytest.raises(BackendUnavailable):
        program.run_blocking()


def test_outcomes_come_as_they_finish_with_their_index(kind: Kind, backend: Any) -> None:
    """The first one is still at it when the others have been reported."""
    programs = [(Sleep(100),), (Say("fast"),), (Exit(3),), (Spin(),)]
    requests = [kind.request(*steps, timeout=0.5 if n == 3 else 120) for n, steps in enumerate(programs)]
    outcomes = backend.run_many_blocking(requests, 4)
    found = {outcome.index: outcome for outcome in (next(outcomes) for _ in range(3))}
    outcomes.close()
    assert sorted(found) == [1, 2, 3]
    assert [found[n].result and (found[n].result.stdout, found[n].result.exit_code) for n in (1, 2, 3)] == [
        ("fast", 0),
        ("", 3),
        None,
    ]
    assert isinstance(found[3].error, ExecutionTimeout)


def test_requests_are_drawn_when_there_is_a_place_and_a_slow_reader_slows_the_drawing(kind: Kind, backend: Any) -> None:
    drawn: list[int] = []

    def requests() -> Iterator[ExecRequest]:
        for n in range(200):
            drawn.append(n)
            yield kind.request(Say(str(n)))

    async def read_some() -> list[Outcome]:
        async with aclosing(backend.run_many(requests(), concurrency=3)) as outcomes:
            found = [await anext(outcomes) for _ in range(4)]
            await asyncio.sleep(0.3)
            return found

    found = asyncio.run(read_some())
    assert len(found) == 4
    assert len(drawn) <= 4 + 3 + 3, "three under way, three waiting to be read, and what was read"


def test_leaving_the_iteration_ends_what_is_under_way(kind: Kind, frugal: Any) -> None:
    async def leave() -> float:
        requests = [kind.request(Say("x")), *(kind.request(Sleep(600), timeout=600) for _ in range(3))]
        async with aclosing(frugal.run_many(requests, concurrency=4)) as outcomes:
            await anext(outcomes)
            began = time.monotonic()
        return time.monotonic() - began

    frugal.execute_blocking(kind.request(Say("what stays between runs is there now")))
    stays = kind.guests(frugal)
    assert asyncio.run(leave()) < PATIENCE
    assert eventually(lambda: kind.guests(frugal) <= stays)


def test_what_the_requests_raise_is_raised_and_asynchronous_ones_will_do(kind: Kind, backend: Any) -> None:
    async def requests() -> AsyncIterator[ExecRequest]:
        yield kind.request(Say("one"))
        raise KeyError("the caller's own")

    async def read() -> None:
        async for _ in backend.run_many(requests()):
            pass

    with pytest.raises(KeyError, match="own"):
        asyncio.run(read())


def test_invalid_requests_and_numbers_are_reported(kind: Kind, backend: Any) -> None:
    (outcome,) = backend.run_many_blocking(["print(1)"])
    assert isinstance(outcome.error, InvalidRequest)
    with pytest.raises(InvalidRequest):
        list(backend.run_many_blocking([], 0))
