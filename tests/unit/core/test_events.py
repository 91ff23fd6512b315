"""Events: everything about a run reaches the listeners, in order, and nothing that must stay private."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from warmcell import AsyncSandbox, ExecRequest, ExecResult, FakeBackend
from warmcell.core import events
from warmcell.core.errors import ExecutionTimeout
from warmcell.core.events import Event
from warmcell.core.types import Denial
from warmcell.lifetime.runs import Runs

SECRET = "correct horse"
REQUEST = ExecRequest("python", f"print({SECRET!r})", 5, stdin=SECRET, env={"TOKEN": SECRET})


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    found: list[Event] = []
    stop = events.listen(found.append)
    yield found
    stop()
    stop()


def test_a_run_is_asked_for_started_and_ended(heard: list[Event]) -> None:
    backend = FakeBackend([ExecResult(stdout=SECRET, exit_code=3, duration=0.5)])
    backend.execute_blocking(REQUEST)
    assert [event.name for event in heard] == ["run.asked", "run.started", "run.ended"]
    assert len({event.subject for event in heard}) == 1 and heard[0].subject
    ended = heard[-1].fields
    assert (ended["outcome"], ended["exit_code"], ended["fault"], ended["language"]) == ("failed", 3, None, "python")
    assert ended["stdout_bytes"] == len(SECRET) and len(ended["policy"]) == 16


def test_dropped_events_reach_no_listener(heard: list[Event]) -> None:
    with events.no_op():
        FakeBackend().execute_blocking(REQUEST)
        other = threading.Thread(target=FakeBackend().execute_blocking, args=(REQUEST,))
        other.start()
        other.join()
    assert [event.name for event in heard] == ["run.asked", "run.started", "run.ended"]
    FakeBackend().execute_blocking(REQUEST)
    assert len(heard) == 6


def test_what_a_guest_was_refused_comes_before_its_end(heard: list[Event]) -> None:
    denial = Denial("filesystem", "/etc/shadow", "no such path", "allow_read")
    FakeBackend([ExecResult(denials=[denial])]).execute_blocking(REQUEST)
    assert [event.name for event in heard][-2:] == ["denial", "run.ended"]
    assert heard[-2].fields["what"] == "/etc/shadow" and heard[-2].subject == heard[-1].subject


def test_a_run_without_a_result_says_whose_fault_it_was(heard: list[Event]) -> None:
    backend = FakeBackend(lambda request: ExecutionTimeout(1.0))
    with pytest.raises(ExecutionTimeout):
        backend.execute_blocking(REQUEST)
    assert (heard[-1].fields["outcome"], heard[-1].fields["fault"]) == ("timeout", "guest")


def test_no_event_carries_code_input_environment_or_output(heard: list[Event]) -> None:
    with_results: list[Event] = []
    stop = events.listen(with_results.append, results=True)
    FakeBackend([ExecResult(stdout=SECRET)]).execute_blocking(REQUEST)
    stop()
    assert SECRET not in repr([(event.name, event.subject, event.fields, event.result) for event in heard])
    assert with_results[-1].result.stdout == SECRET and SECRET not in repr(with_results[-1])


def test_a_listener_that_raises_affects_nothing_else(heard: list[Event], caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise ZeroDivisionError

    stop = events.listen(broken)
    with caplog.at_level(logging.WARNING, "warmcell"):
        assert FakeBackend([ExecResult(stdout="1")]).execute_blocking(REQUEST).ok
    stop()
    assert "a listener failed at run.asked" in caplog.text and heard[-1].name == "run.ended"


async def test_simultaneous_runs_are_distinguished(heard: list[Event]) -> None:
    backend = FakeBackend(lambda request: ExecResult(), latency=0.01)
    await asyncio.gather(*[backend.execute(REQUEST) for _ in range(20)])
    by_run: dict[str, list[str]] = {}
    for event in heard:
        by_run.setdefault(event.subject, []).append(event.name)
    assert len(by_run) == 20
    assert set(map(tuple, by_run.values())) == {("run.asked", "run.started", "run.ended")}


def test_listeners_come_and_go_from_many_threads() -> None:
    others = events.listeners  # of tests in this process that are not over yet

    def work() -> None:
        for _ in range(200):
            events.listen(lambda event: None)()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events.listeners == others


async def test_a_sandbox_tells_of_itself_and_of_files(heard: list[Event]) -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.write_file("a/b.txt", SECRET)
        await sandbox.read_file("a/b.txt")
        await sandbox.remove("a", recursive=True)
    told = [(event.name, dict(event.fields)) for event in heard]
    assert told == [
        ("sandbox.made", {"backend": "process"}),
        ("file", {"operation": "write_file", "path": "a/b.txt"}),
        ("file", {"operation": "remove", "path": "a"}),
        ("sandbox.gone", {"backend": "process"}),
    ]
    assert {event.subject for event in heard} == {sandbox.id}


def test_later_events_do_not_belong_to_an_earlier_run(heard: list[Event]) -> None:
    FakeBackend([ExecResult()]).execute_blocking(REQUEST)
    assert events.current_run() == ""
    Runs("session", 1, 5).run_blocking(lambda run: None)
    assert [event.name for event in heard] == ["run.asked", "run.started", "run.ended"]
