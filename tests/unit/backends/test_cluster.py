"""Runs on a cluster: where they go, what a lost node costs, and that nothing is counted twice. Without Ray."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import until, until_async
from tests.unit.backends.stand_in_nodes import LocalTransport, StandInNodes

from warmcell import (
    BackendCapabilities,
    BackendUnavailable,
    Case,
    EnforcedLimits,
    EnforcerUnavailable,
    ExecRequest,
    ExecutionFailed,
    FetchPolicy,
    InvalidRequest,
    Language,
    NodeLost,
    OutputEvent,
    SandboxPolicy,
    judge,
)
from warmcell.backends.fake import FakeGuest
from warmcell.backends.ray import cluster
from warmcell.backends.ray.node_service import BatchRuns
from warmcell.backends.ray.placement import Needs, NodeFacts, NodeInfo, choose, usable
from warmcell.lifetime.portal import portal

REQUEST = ExecRequest("python", "print(1)", 20)


def candidate(
    name: str,
    running: int = 0,
    cores: int = 2,
    languages: tuple[str, ...] = ("python",),
    seconds: float | None = None,
    **info: Any,
) -> Any:
    facts = NodeFacts(1, "1", 48, BackendCapabilities(languages, "process+sandbox", EnforcedLimits()))
    known = NodeInfo(name, "", cores, **{"gpus": 0, **info})
    return SimpleNamespace(info=known, facts=facts, running=running, sandboxes=0, batch_run_seconds=seconds)


#: Candidates, what the run needs, and the chosen one.
PLACEMENTS: dict[str, tuple[list[Any], Needs, str | None]] = {
    "the lowest load": ([candidate("a", 3), candidate("b", 1)], Needs("python"), "b"),
    "load is per processor": ([candidate("a", 3, 8), candidate("b", 1, 1)], Needs("python"), "a"),
    "not one that drains": ([candidate("a", is_draining=True), candidate("b", 9)], Needs("python"), "b"),
    "one with the language": ([candidate("a"), candidate("b", 9, languages=("go",))], Needs("go"), "b"),
    "any for a language that none has": ([candidate("a")], Needs("klingon"), "a"),
    "one with a GPU": ([candidate("a"), candidate("b", 9, gpus=1)], Needs("python", has_gpus=True), "b"),
    "none without a GPU": ([candidate("a")], Needs("python", has_gpus=True), None),
    "none without a free slot": ([candidate("a", 48)], Needs("python"), None),
    "a batch has fewer slots": ([candidate("a", 6)], Needs("python", is_batch=True), None),
    "short runs of a batch wait on the node": (
        [candidate("a", 44, seconds=0.03)],
        Needs("python", is_batch=True),
        None,
    ),
    "and are not many more than those that travel": (
        [candidate("a", 43, seconds=0.03)],
        Needs("python", is_batch=True),
        "a",
    ),
    "long runs do not": ([candidate("a", 6, seconds=9)], Needs("python", is_batch=True), None),
    "cases of a judge are one for each processor, and two wait": (
        [candidate("a", 4), candidate("b", 3)],
        Needs("python", is_batch=True, per_core=1),
        "b",
    ),
    "no more of them": ([candidate("a", 4)], Needs("python", is_batch=True, per_core=1), None),
    "no node": ([], Needs("python"), None),
}


@pytest.mark.parametrize("case", list(PLACEMENTS))
def test_placement(case: str) -> None:
    candidates, needs, expected = PLACEMENTS[case]
    chosen = choose(candidates, needs)
    assert (chosen and chosen.info.id) == expected


def test_nodes_without_processors_for_ray_get_no_work_unless_they_are_named() -> None:
    head, worker = NodeInfo("head", "", 0, 0), NodeInfo("worker", "", 4, 0)
    named = NodeInfo("named", "", 0, 0, has_resource=True)
    assert usable([head, worker]) == [worker]
    assert usable([head, worker, named]) == [named]
    assert usable([head]) == [head]


def test_a_run_whose_node_is_lost_is_repeated_elsewhere() -> None:
    seen: list[str] = []

    def answer(node: str, _: ExecRequest) -> Any:
        seen.append(node)
        if len(seen) == 1:
            nodes.kill(node)
            return FakeGuest(seconds=15)
        return node

    nodes = StandInNodes("a", "b", answer=answer)
    with nodes.backend() as backend:
        result = backend.execute_blocking(REQUEST)
        assert len(seen) == 2 and seen[0] != seen[1] == result.stdout
        until(lambda: [node.id for node in backend.nodes()] == [seen[1]])


@pytest.mark.parametrize("retries", [0, 2])
def test_after_so_many_lost_nodes_it_is_the_hosts_fault(retries: int) -> None:
    seen: list[str] = []

    def answer(node: str, _: ExecRequest) -> Any:
        seen.append(node)
        nodes.kill(node)
        return FakeGuest(seconds=15)

    nodes = StandInNodes("a", "b", "c", "d", "e", answer=answer)
    with nodes.backend(retries) as backend:
        (outcome,) = backend.run_many_blocking([REQUEST], 1)
        assert isinstance(outcome.error, NodeLost)
        assert (outcome.error.fault, outcome.error.retryable, outcome.error.node) == ("host", True, seen[-1])
        assert len(seen) == retries + 1


def test_losing_nodes_in_the_middle_of_a_batch_loses_and_doubles_nothing() -> None:
    count = Counter[str]()
    lock = threading.Lock()

    def answer(node: str, request: ExecRequest) -> Any:
        with lock:
            count[node] += 1
            if count["a"] == 20 and "a" in nodes.nodes:
                nodes.kill("a")
            if count["b"] == 60:
                nodes.kill("b", for_good=False)
        return FakeGuest(stdout=str(request.stdin), seconds=0.002)

    nodes = StandInNodes("a", "b", "c", answer=answer)
    with nodes.backend() as backend:
        requests = (ExecRequest("python", "x", 20, stdin=str(n)) for n in range(400))
        outcomes = list(backend.run_many_blocking(requests))
        assert sorted(outcome.index for outcome in outcomes) == list(range(400))
        assert all(outcome.result and outcome.result.stdout == str(outcome.index) for outcome in outcomes)
    assert count["a"] >= 20 and count["b"] >= 60 and sum(count.values()) >= 400


def test_verdicts_are_those_of_one_host_though_a_node_is_lost() -> None:
    def answer(node: str, request: ExecRequest) -> Any:
        if request.stdin == "7" and node == "a":
            nodes.kill("a")
            return FakeGuest(seconds=15)
        return str(request.stdin)

    nodes = StandInNodes("a", "b", answer=answer)
    cases = [Case(str(n), str(n if n % 3 else -1)) for n in range(30)]
    with nodes.backend() as backend:
        verdicts = judge(REQUEST, cases, backend=backend, clock="wall")
    assert [verdict.status for verdict in verdicts] == ["accepted" if n % 3 else "wrong_answer" for n in range(30)]


@pytest.mark.parametrize(
    ("options", "is_batch"), [({}, True), ({"concurrency": 3}, False), ({"stop_early": True}, False)]
)
def test_cases_are_a_batch_with_a_processor_each(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], is_batch: bool
) -> None:
    at_once_of_cases: list[int] = []
    run = BatchRuns.run

    async def note_run(self: BatchRuns, execute: Any, at_once: int) -> Any:
        at_once_of_cases.append(at_once)
        return await run(self, execute, at_once)

    monkeypatch.setattr(BatchRuns, "run", note_run)
    nodes = StandInNodes("a", "b", answer=lambda _, request: str(request.stdin))
    with nodes.backend() as backend:
        verdicts = judge(REQUEST, [Case(str(n), str(n)) for n in range(60)], backend=backend, **options)
    assert all(verdict.ok for verdict in verdicts) and len(verdicts) == 60
    assert at_once_of_cases == [2] * (60 if is_batch else 0)


def test_a_node_that_joins_is_used_and_one_that_drains_is_emptied() -> None:
    nodes = StandInNodes("a")
    with nodes.backend() as backend:
        assert backend.execute_blocking(REQUEST).stdout == "a"
        nodes.nodes["b"] = NodeInfo("b", "127.0.0.1", 8, 0)
        until(lambda: {node.id: node.reason for node in backend.nodes()} == {"a": "", "b": ""})
        nodes.drain("a")
        until(lambda: nodes.transports["a"].is_closed)
        assert {backend.execute_blocking(REQUEST).stdout for _ in range(3)} == {"b"}
        assert {node.id: node.reason for node in backend.nodes()} == {"a": "draining", "b": ""}


async def test_a_run_on_a_draining_node_ends_by_itself() -> None:
    nodes = StandInNodes("a", answer=lambda node, _: FakeGuest(stdout=node, seconds=2.5))
    backend = nodes.backend()
    run = asyncio.create_task(backend.execute(REQUEST))
    await until_async(lambda: nodes.transports and nodes.transports["a"].backend.requests)
    nodes.drain("a")
    assert (await run).stdout == "a"
    await until_async(lambda: nodes.transports["a"].is_closed)
    await backend.aclose()


def test_a_stream_that_was_heard_is_not_repeated() -> None:
    seen: list[str] = []

    def answer(node: str, _: ExecRequest) -> Any:
        seen.append(node)
        return FakeGuest(stdout="so far", seconds=15)

    nodes = StandInNodes("a", "b", answer=answer)
    with nodes.backend() as backend:
        events = backend.stream_blocking(REQUEST)
        assert next(events) == OutputEvent("stdout", b"so far")
        nodes.kill(seen[0])
        with pytest.raises(NodeLost):
            next(events)
        assert len(seen) == 1


def test_a_node_that_cannot_enforce_gets_no_work_and_says_why() -> None:
    nodes = StandInNodes("a", "b")
    nodes.unfit["a"] = EnforcerUnavailable("native", "no user namespaces")
    with nodes.backend() as backend:
        assert {backend.execute_blocking(REQUEST).stdout for _ in range(4)} == {"b"}
        found = {node.id: (node.isolation_class, node.reason) for node in backend.nodes()}
        assert found == {"a": ("unavailable", "native: no user namespaces"), "b": ("fake", "")}
    nodes = StandInNodes("a")
    nodes.unfit["a"] = EnforcerUnavailable("native", "no user namespaces")
    with nodes.backend() as backend, pytest.raises(EnforcerUnavailable, match="user namespaces"):
        backend.execute_blocking(REQUEST)


def test_a_batch_for_a_gpu_that_no_node_has_is_refused() -> None:
    """It waited for ever. A node with a GPU that cannot enforce the policy gives its reason."""
    nodes = StandInNodes("a")
    with nodes.backend(queue_timeout=0.2) as backend:
        backend.policy = SandboxPolicy(gpus="all")
        (outcome,) = backend.run_many_blocking([REQUEST])
        assert isinstance(outcome.error, BackendUnavailable) and "has a GPU" in outcome.error.message
        nodes.unfit["b"] = EnforcerUnavailable("native", "no user namespaces")
        nodes.nodes["b"] = NodeInfo("b", "127.0.0.1", 2, 1)
        until(lambda: any(node.reason.startswith("native") for node in backend.nodes()))
        (outcome,) = backend.run_many_blocking([REQUEST])
        assert isinstance(outcome.error, EnforcerUnavailable)
        nodes.nodes["c"] = NodeInfo("c", "127.0.0.1", 2, 1)
        until(lambda: any(node.id == "c" and not node.reason for node in backend.nodes()))
        (outcome,) = backend.run_many_blocking([REQUEST])
        assert outcome.result is not None and outcome.result.stdout == "c"


def test_a_node_with_another_version_gets_no_work() -> None:
    nodes = StandInNodes("a")
    nodes.facts = {"version": "0.0.1"}
    with nodes.backend() as backend, pytest.raises(BackendUnavailable, match=r"has warmcell 0\.0\.1"):
        backend.execute_blocking(REQUEST)


def test_a_node_whose_facts_cannot_be_read_gets_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version may have other fields. It is not started again and again, and `nodes` says why."""
    starts: list[str] = []

    async def fail(transport: LocalTransport) -> NodeFacts:
        starts.append(transport._id)
        raise AttributeError("no field 'version'")

    looks: list[int] = []
    nodes = StandInNodes("a")

    def list_nodes() -> list[NodeInfo]:
        looks.append(len(looks))
        return list(nodes.nodes.values())

    monkeypatch.setattr(LocalTransport, "start", fail)
    monkeypatch.setattr(nodes, "list", list_nodes)
    monkeypatch.setattr(cluster, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(cluster, "_AGAIN_SECONDS", 1e6)
    with nodes.backend() as backend:
        with pytest.raises(BackendUnavailable, match="AttributeError: no field 'version'"):
            backend.execute_blocking(REQUEST)
        seen = len(looks)
        until(lambda: len(looks) > seen + 2)
        (described,) = backend._cluster.describe()
    assert described.isolation_class == "unavailable" and "AttributeError" in described.reason
    assert starts == ["a"]


def test_capabilities_are_what_all_nodes_enforce_and_any_node_can_run() -> None:
    nodes = StandInNodes("a", "b")
    with nodes.backend() as backend:
        found = backend.capabilities()
        assert Language.PYTHON in found.supported_languages
        assert (found.isolation_class, found.enforced_limits) == ("fake", EnforcedLimits())


async def test_cancelling_ends_the_run_on_its_node() -> None:
    nodes = StandInNodes("a", answer=lambda node, _: FakeGuest(seconds=15))
    backend = nodes.backend()
    task = asyncio.create_task(backend.execute(REQUEST))
    await until_async(lambda: nodes.transports and nodes.transports["a"].backend.requests)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not nodes.transports["a"].service._tasks
    await backend.aclose()


async def test_a_cancelled_build_leaves_no_program_on_its_node() -> None:
    """The node went on with it, and kept what it had built until the backend was closed."""
    nodes = StandInNodes("a")
    backend = nodes.backend()
    assert (await backend.execute(REQUEST)).stdout == "a"
    node = nodes.transports["a"]
    build, is_building, may_end = node.backend.build, threading.Event(), threading.Event()

    async def build_slowly(request: ExecRequest) -> Any:
        is_building.set()
        while not may_end.is_set():
            await asyncio.sleep(0.01)
        return await build(request)

    node.backend.build = build_slowly  # type: ignore[method-assign]
    building = asyncio.create_task(backend.build(REQUEST))
    await until_async(is_building.is_set)
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    may_end.set()
    await until_async(lambda: not node.service._programs, 10)
    await backend.aclose()


@pytest.mark.parametrize("failure", [BackendUnavailable("no space left"), OSError("no space left")])
async def test_a_build_that_failed_on_a_node_is_tried_again_there(failure: Exception) -> None:
    nodes = StandInNodes("a", "b")
    backend = nodes.backend()
    program = await backend.build(REQUEST)
    await until_async(lambda: len(backend.links()) == 2)
    (other,) = (link for link in backend.links() if not link.programs)
    node = nodes.transports[other.info.id].backend
    build, failures = node.build, [failure]

    async def fail_once(request: ExecRequest) -> Any:
        if failures:
            raise failures.pop()
        return await build(request)

    node.build = fail_once  # type: ignore[method-assign]
    nodes.drain("a" if other.info.id == "b" else "b")
    await until_async(lambda: len(backend.links()) == 1)
    with pytest.raises((BackendUnavailable, ExecutionFailed), match="no space left"):
        await program.run()
    assert (await program.run()).stdout == other.info.id
    assert (await program.run()).stdout == other.info.id
    await backend.aclose()


async def test_what_cannot_be_sent_is_refused_and_the_link_lives_on() -> None:
    nodes = StandInNodes("a")
    backend = nodes.backend()
    assert (await backend.execute(REQUEST)).stdout == "a"
    (link,) = backend._cluster.links.values()
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        await portal.call_async(link.call, "sandbox", lambda: None)
    assert (await backend.execute(REQUEST)).stdout == "a"
    await backend.aclose()


def test_a_fetch_policy_can_be_sent() -> None:
    policy = FetchPolicy(allowed_domains=["example.org"])
    assert pickle.loads(pickle.dumps(policy)) == policy
