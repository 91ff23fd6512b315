"""The program around the backend: it forks, runs out of descriptors, and asks for more at once than there is room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.contract import scenario
from tests.contract.conftest import BACKENDS, Kind
from tests.contract.programs import Say, Sleep, Spin

from warmcell import BackendBusy, BackendUnavailable

#: For the program around it, the bare class and Landlock's are the native one: the same processes, made the same way.
KINDS = [name for name in BACKENDS if name not in ("bare", "landlock")]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return BACKENDS[request.param]


@pytest.fixture
def name(kind: Kind, backend: Any, request: pytest.FixtureRequest) -> str:
    """Of a backend that works here."""
    if backend.name == "ray":
        pytest.skip("Ray supports no forks, and has descriptors and processes of its own")
    return str(request.node.callspec.params["kind"])


@pytest.mark.attack("S2-26")
def test_a_forked_child_runs_and_its_exit_does_no_harm(name: str) -> None:
    assert scenario.play(scenario.child_runs_and_exits, name) == ["before", "child", "after"]


@pytest.mark.attack("S2-26")
def test_a_forked_child_that_closes_the_backend_does_no_harm(name: str) -> None:
    assert scenario.play(scenario.child_closes, name) == ["before", "BackendUnavailable", "after"]


@pytest.mark.attack("S2-26")
def test_a_run_of_the_parent_outlives_a_child(name: str) -> None:
    assert scenario.play(scenario.child_while_running, name) == ["parent", "child"]


@pytest.mark.attack("S2-26")
def test_children_of_a_busy_parent_find_no_lock_held(name: str) -> None:
    assert scenario.play(scenario.children_of_a_busy_parent, name) == [["child"], []]


@pytest.mark.attack("S2-27")
def test_without_descriptors_a_run_fails_as_ours_and_leaves_nothing(name: str, kind: Kind) -> None:
    told = scenario.play(scenario.no_descriptors_left, name)
    assert [item for item in told["seen"] if item[0] != "ran" and item[1] != "host"] == []
    assert kind.is_imaginary or [item for item in told["seen"] if item[1] == "host"], "it never ran out"
    assert told["seen"][-1] == ["ran", "", True]
    assert told["warm"] <= told["before"] and told["after all"] <= told["before any"], told


def test_closed_it_leaves_no_process_and_no_descriptor(name: str) -> None:
    told = scenario.play(scenario.create_use_and_close, name)
    first = told["left"][0]  # processes and descriptors, of which later runs may leave fewer
    assert all(count <= most for left in told["left"] for count, most in zip(left, first, strict=True)), told


async def test_who_waits_for_a_place_is_not_out_of_time(fresh: Any, kind: Kind) -> None:
    backend = fresh(max_concurrency=1)
    await backend.execute(kind.request(Say("warm")))
    first = asyncio.create_task(backend.execute(kind.request(Sleep(5), timeout=60)))
    await asyncio.sleep(0.3)
    result = await backend.execute(kind.request(Say("second"), timeout=3))
    assert (result.stdout, (await first).exit_code) == ("second", 0)
    assert result.queued >= 1
    assert result.duration < result.queued


async def test_a_wait_past_the_queue_timeout_is_busy(fresh: Any, kind: Kind) -> None:
    backend = fresh(max_concurrency=1, queue_timeout=0.5)
    await backend.execute(kind.request(Say("warm")))
    first = asyncio.create_task(backend.execute(kind.request(Sleep(60), timeout=120)))
    await asyncio.sleep(0.3)
    with pytest.raises(BackendBusy) as caught:
        await backend.execute(kind.request(Say("second")))
    assert (caught.value.waited, caught.value.fault, caught.value.retryable) == (0.5, "host", True)
    assert not first.done()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await backend.execute(kind.request(Say("third")))).stdout == "third"


async def test_places_are_given_in_the_order_of_asking(fresh: Any, kind: Kind) -> None:
    backend = fresh(max_concurrency=1)
    await backend.execute(kind.request(Say("warm")))
    done: list[str] = []

    async def run(text: str, seconds: float) -> None:
        done.append((await backend.execute(kind.request(Sleep(seconds), Say(text), timeout=60))).stdout)

    tasks = []
    for text, seconds in (("a", 0.5), ("b", 0.01), ("c", 0.01), ("d", 0.01)):
        tasks.append(asyncio.create_task(run(text, seconds)))
        await asyncio.sleep(0.02)
    await asyncio.gather(*tasks)
    assert done == ["a", "b", "c", "d"]


async def test_a_cancelled_wait_gives_its_place_to_the_next(fresh: Any, kind: Kind) -> None:
    backend = fresh(max_concurrency=1)
    await backend.execute(kind.request(Say("warm")))
    first = asyncio.create_task(backend.execute(kind.request(Sleep(5), Say("first"), timeout=60)))
    await asyncio.sleep(0.3)
    waiting = asyncio.create_task(backend.execute(kind.request(Spin(), timeout=60)))
    last = asyncio.create_task(backend.execute(kind.request(Say("last"), timeout=60)))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not first.done()
    assert ((await first).stdout, (await last).stdout) == ("first", "last")


async def test_closing_rejects_waiting_runs(fresh: Any, kind: Kind) -> None:
    backend = fresh(max_concurrency=1)
    await backend.execute(kind.request(Say("warm")))
    tasks = [asyncio.create_task(backend.execute(kind.request(Sleep(60), timeout=300))) for _ in range(3)]
    await asyncio.sleep(0.5)
    await asyncio.wait_for(backend.aclose(), 60)
    ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    assert [type(error) for error in ended] == [BackendUnavailable] * 3
