"""The quota of a token over all nodes of a cluster, for requests that come together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from warmcell.backends.ray.placement import NodeInfo
from warmcell.core.records import replace
from warmcell.interfaces.serve.cluster import front as front_module
from warmcell.interfaces.serve.cluster import node_server
from warmcell.interfaces.serve.cluster.front import ClusterFront
from warmcell.interfaces.serve.cluster.node_server import (
    ELSEWHERE,
    GPU_IS_COUNTED,
    GPUS_ELSEWHERE,
    ClusterQuota,
    NodeGpus,
)
from warmcell.interfaces.serve.cluster.nodes import NodePeer
from warmcell.interfaces.serve.cluster.placement import Kind, Place
from warmcell.interfaces.serve.requests import BodyMemory
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.service import LOCAL_TENANT
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import Tenant, add_token
from warmcell.languages.config import ProcessConfig

TENANT = LOCAL_TENANT.id
GPU_RUN = b'{"language": "python", "gpus": "all"}'


class Nodes:
    """A front whose nodes take sandboxes within a quota of one. A count waits for `may_answer` when it is taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, tokens: str | None = None) -> None:
        backend: Any = SimpleNamespace(retries=0)
        self.front = ClusterFront(Settings(tokens=tokens), backend)
        links: list[Any] = [SimpleNamespace(info=NodeInfo(name * 8, "", 1, 0), lost=None) for name in names]
        self.peers = [NodePeer(link, "/nowhere") for link in links]
        self.quotas = {peer: ClusterQuota() for peer in self.peers}
        self.gpu_quotas = {peer: ClusterQuota() for peer in self.peers}
        self.front.nodes._peers = {peer.suffix: peer for peer in self.peers}
        self.counted, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        monkeypatch.setattr(self.front.nodes, "_ask_each", self._ask_each)
        monkeypatch.setattr(front_module, "relay", self._relay)

    async def _ask_each(self, peers: list[NodePeer], method: str) -> list[Counter[str]]:
        quotas = self.gpu_quotas if method == "count_gpus" else self.quotas
        found, may_answer = [quotas[peer].by_tenant() for peer in peers], self.may_answer
        self.counted.set()
        await may_answer.wait()
        return found

    async def _relay(self, peer: NodePeer, scope: Any, receive: object, send: Any) -> None:
        headers = dict(scope["headers"])
        owner, is_made = headers.get(b"owner", TENANT.encode()).decode(), True
        for name, quota in ((ELSEWHERE, self.quotas[peer]), (GPUS_ELSEWHERE, self.gpu_quotas[peer])):
            if (counted := headers.get(name.encode())) is not None:
                quota.note_elsewhere(owner, *map(int, counted.split()))
                await asyncio.sleep(0)
                is_made = is_made and quota.take(owner, 1)
        await send({"type": "http.response.start", "status": 201 if is_made else 429})

    async def create(self, peer: NodePeer, *headers: tuple[bytes, bytes], **options: bool) -> int:
        """The status of the answer."""
        answers: list[int] = []

        async def send(message: Any) -> None:
            answers.append(message["status"])

        receive: Any = None
        await self.front._relay(peer, make_request(*headers), receive, send, **(options or {"is_creating": True}))
        return answers[0]


def make_request(*headers: tuple[bytes, bytes]) -> Request:
    return Request({"type": "http", "method": "POST", "path": "/v1/sandboxes", "headers": list(headers)})


async def test_requests_that_come_together_do_not_exceed_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one waited for the count of a slow node, another began and ended, and was in no count."""
    nodes = Nodes(monkeypatch, "a", "b")
    first, second = nodes.peers
    may_answer = nodes.may_answer
    may_answer.clear()
    slow = asyncio.ensure_future(nodes.create(first))
    await nodes.counted.wait()
    nodes.may_answer = asyncio.Event()
    nodes.may_answer.set()
    quick = asyncio.ensure_future(nodes.create(second))
    for _ in range(20):  # as far as it gets
        await asyncio.sleep(0)
    may_answer.set()
    assert sorted([await slow, await quick]) == [201, 429]


async def test_a_sandbox_that_is_made_while_a_count_is_on_its_way_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch, "a", "b")
    first, second = nodes.peers
    first.creating[TENANT] += 1
    nodes.may_answer.clear()
    creating = asyncio.ensure_future(nodes.create(second))
    await nodes.counted.wait()
    assert nodes.quotas[first].take(TENANT, 1)
    first.creating[TENANT] -= 1
    nodes.may_answer.set()
    assert await creating == 429


def test_a_request_that_was_overtaken_does_not_undo_a_later_count() -> None:
    quota = ClusterQuota()
    for number, found in ((2, 1), (1, 0)):
        quota.note_elsewhere(TENANT, number, found)
    assert quota.take(TENANT, 2) and not quota.take(TENANT, 2)
    assert quota.count(TENANT) == 2


def make_tenant(place: Path) -> tuple[str, str, Tenant]:
    """The file, the token and the tenant, who may use one GPU at a time."""
    file = str(place / "tokens.json")
    return file, *add_token(file, "one", scopes=("run", "sandbox", "gpu"), gpu_runs=1)


async def test_a_run_with_a_gpu_counts_on_all_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A token could have as many on each node."""
    file, _, tenant = make_tenant(tmp_path)
    nodes, request = Nodes(monkeypatch, "a", "b", tokens=file), make_request()
    hold, quota = nodes.front._hold_gpu, nodes.gpu_quotas[nodes.peers[1]]
    async with hold(request, tenant, GPU_RUN):
        assert (GPU_IS_COUNTED.encode(), b"1") in request.scope["headers"]
        with pytest.raises(HttpError, match="already has 1"):
            async with hold(make_request(), tenant, GPU_RUN):
                pass
        async with hold(make_request(), tenant, b"{}"):
            pass
    assert quota.take(tenant.id, 1)  # a sandbox
    with pytest.raises(HttpError, match="already has 1"):
        async with hold(make_request(), tenant, GPU_RUN):
            pass
    quota.release(tenant.id)
    async with hold(make_request(), tenant, GPU_RUN):
        pass


async def test_a_sandbox_with_a_gpu_counts_on_all_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, token, tenant = make_tenant(tmp_path)
    nodes = Nodes(monkeypatch, "a", "b", tokens=file)
    first, second = nodes.peers
    headers = (b"x-api-key", token.encode()), (b"owner", tenant.id.encode())
    async with nodes.front._hold_gpu(make_request(), tenant, GPU_RUN):
        assert await nodes.create(first, *headers, may_have_gpu=True) == 429
    assert await nodes.create(first, *headers, may_have_gpu=True) == 201
    assert await nodes.create(second, *headers, may_have_gpu=True) == 429
    assert await nodes.create(second, *headers, is_creating=True) == 201


async def test_what_has_no_gpu_does_not_count_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While a fork or a background run without a GPU was made, the token's run with one was refused."""
    file, token, tenant = make_tenant(tmp_path)
    nodes, found = Nodes(monkeypatch, "a", "b", tokens=file), list[bool]()
    home = nodes.peers[0]
    app = SimpleNamespace(state=SimpleNamespace(bodies=BodyMemory()))
    fork, path = Place(Kind.SANDBOX, f"1{home.suffix}", is_creating=True), f"/v1/sandboxes/1{home.suffix}/fork"

    async def relay_nothing(*_: object, **options: bool) -> None:
        found.append(options["may_have_gpu"])

    async def answer(path: str, place: Place, body: bytes = b"{}") -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        scope = {**make_request((b"x-api-key", token.encode())).scope, "path": path, "app": app}
        await nodes.front._answer(Request(scope, receive), place, None)

    monkeypatch.setattr(nodes.front, "_relay", relay_nothing)
    monkeypatch.setattr(nodes.front.nodes, "choose_home", lambda _: home)
    await answer("/v1/runs", Place(Kind.HOME), b'{"language": "python"}')
    await answer("/mcp", Place(Kind.HOME, is_creating=True))
    await answer(path, fork)
    assert found == [False, False, False]
    assert nodes.gpu_quotas[home].take(tenant.id, 1)  # perhaps by the sandbox that is forked
    await answer("/v1/runs", Place(Kind.HOME), GPU_RUN)
    await answer(path, fork)
    assert found[3:] == [True, True]


def test_a_node_does_not_count_the_runs_that_the_front_counts() -> None:
    quota, tenant = ClusterQuota(), replace(LOCAL_TENANT, gpu_runs=1)
    gpus = NodeGpus(ProcessConfig(), quota)
    is_counted = node_server._gpu_is_counted.set(True)
    try:
        with gpus.count_use(tenant, True):
            assert quota.count(tenant.id) == 0
    finally:
        node_server._gpu_is_counted.reset(is_counted)
    with gpus.count_use(tenant, True):
        assert quota.count(tenant.id) == 1


async def test_a_token_leaves_slots_of_the_cluster_to_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A token with as many `--runs` as the cluster has slots held all of them, as long as its runs lasted."""
    file, token, tenant = make_tenant(tmp_path)
    nodes, shares = Nodes(monkeypatch, "a", tokens=file), list[int]()

    @asynccontextmanager
    async def hold_slot(owner: str, share: int, timeout: float) -> AsyncIterator[None]:
        shares.append(share)
        yield

    async def relay_nothing(*_: object) -> None:
        pass

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    monkeypatch.setattr(nodes.front, "_queue", SimpleNamespace(slot=hold_slot))
    monkeypatch.setattr(nodes.front, "_repeat", relay_nothing)
    app = SimpleNamespace(state=SimpleNamespace(bodies=BodyMemory()))
    for slots in (16, 8, 2, 1):
        nodes.front._slots = slots
        scope = {**make_request((b"x-api-key", token.encode())).scope, "app": app}
        await nodes.front._answer_by_load(Request(scope, receive), Place(Kind.RUN), None)
    assert tenant.runs > 16 and shares == [14, 7, 1, 1]
