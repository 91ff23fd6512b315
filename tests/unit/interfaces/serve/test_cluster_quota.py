"""The quota of a token over all nodes of a cluster, for requests that come together."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from warmcell.backends.ray.placement import NodeInfo
from warmcell.interfaces.serve.cluster import front as front_module
from warmcell.interfaces.serve.cluster.front import ClusterFront
from warmcell.interfaces.serve.cluster.node_server import ELSEWHERE, ClusterQuota
from warmcell.interfaces.serve.cluster.nodes import NodePeer
from warmcell.interfaces.serve.service import LOCAL_TENANT
from warmcell.interfaces.serve.settings import Settings

TENANT = LOCAL_TENANT.id


class Nodes:
    """A front whose nodes take sandboxes within a quota of one. A count waits for `may_answer` when it is taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        backend: Any = SimpleNamespace(retries=0)
        self.front = ClusterFront(Settings(), backend)
        links: list[Any] = [SimpleNamespace(info=NodeInfo(name * 8, "", 1, 0), lost=None) for name in names]
        self.peers = [NodePeer(link, "/nowhere") for link in links]
        self.quotas = {peer: ClusterQuota() for peer in self.peers}
        self.front.nodes._peers = {peer.suffix: peer for peer in self.peers}
        self.counted, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        monkeypatch.setattr(self.front.nodes, "_ask_each", self._ask_each)
        monkeypatch.setattr(front_module, "relay", self._relay)

    async def _ask_each(self, peers: list[NodePeer], method: str) -> list[Counter[str]]:
        found, may_answer = [self.quotas[peer].by_tenant() for peer in peers], self.may_answer
        self.counted.set()
        await may_answer.wait()
        return found

    async def _relay(self, peer: NodePeer, scope: Any, receive: object, send: Any) -> None:
        quota, counted = self.quotas[peer], dict(scope["headers"])[ELSEWHERE.encode()]
        quota.note_elsewhere(TENANT, *map(int, counted.split()))
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 201 if quota.take(TENANT, 1) else 429})

    async def create(self, peer: NodePeer) -> int:
        """The status of the answer."""
        answers: list[int] = []

        async def send(message: Any) -> None:
            answers.append(message["status"])

        scope = {"type": "http", "method": "POST", "path": "/v1/sandboxes", "headers": []}
        receive: Any = None
        await self.front._relay(peer, Request(scope), receive, send, is_creating=True)
        return answers[0]


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
