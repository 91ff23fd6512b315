"""Nodes of a cluster inside this process, each with a `FakeBackend`, in place of Ray's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from warmcell import ExecRequest, FakeBackend, ProcessConfig, RayBackend
from warmcell.backends.fake.script import Answer
from warmcell.backends.ray.cluster import Cluster
from warmcell.backends.ray.node_service import NodeService
from warmcell.backends.ray.placement import NodeFacts, NodeInfo
from warmcell.core.errors import SandboxError
from warmcell.core.records import replace


class ScriptedBackend(FakeBackend):
    def __init__(self, answer: Callable[[ExecRequest], Answer], slots: int) -> None:
        super().__init__(answer, max_concurrency=slots)
        self.config = ProcessConfig(max_concurrency=slots)


class LocalTransport:
    """Calls a service on the same event loop, until it is killed."""

    def __init__(self, nodes: StandInNodes, node_id: str) -> None:
        self._nodes, self._id = nodes, node_id
        self._is_dead = asyncio.Event()
        self.is_closed = False
        self.backend = ScriptedBackend(lambda request: nodes.answer(node_id, request), nodes.slots)

    async def start(self) -> NodeFacts:
        if (reason := self._nodes.unfit.get(self._id)) is not None:
            raise reason
        self.service = NodeService(lambda: self.backend)
        return replace(await self.service.start(), **self._nodes.facts)

    async def submit(self, payload: bytes) -> None:
        self._check()
        self.service.submit(payload)

    async def take(self) -> bytes:
        return await self._until_dead(self.service.take())

    async def check(self) -> None:
        self._check()

    async def _until_dead(self, call: Coroutine[Any, Any, bytes]) -> bytes:
        calling, dying = asyncio.ensure_future(call), asyncio.ensure_future(self._is_dead.wait())
        try:
            await asyncio.wait([calling, dying], return_when=asyncio.FIRST_COMPLETED)
            self._check()
            return calling.result()
        finally:
            calling.cancel()
            dying.cancel()

    async def close(self) -> None:
        self._check()
        self.is_closed = True
        await self.service.close()

    def kill(self) -> None:
        self._is_dead.set()

    def _check(self) -> None:
        if self._is_dead.is_set():
            raise ConnectionError("the actor died")


class StandInNodes:
    """`answer` is called with a node's id and the request of each run on it, on the event loop: it must not block."""

    def __init__(self, *ids: str, answer: Callable[[str, ExecRequest], Answer] = lambda node, _: node) -> None:
        self.nodes = {one: NodeInfo(one, "127.0.0.1", 2, 0) for one in ids}
        self.answer, self.slots = answer, 4
        self.unfit: dict[str, SandboxError] = {}
        self.facts: dict[str, Any] = {}
        self.transports: dict[str, LocalTransport] = {}

    def backend(self, retries: int = 2, queue_timeout: float = 30) -> RayBackend:
        made = RayBackend(config=ProcessConfig(queue_timeout=queue_timeout), retries=retries)
        made._cluster = Cluster(self, lambda: None, queue_timeout)
        return made

    def join(self) -> None: ...
    def leave(self) -> None: ...

    def list(self) -> list[NodeInfo]:
        return list(self.nodes.values())

    def start(self, node_id: str, make_backend: Callable[[], Any]) -> LocalTransport:
        self.transports[node_id] = LocalTransport(self, node_id)
        return self.transports[node_id]

    def kill(self, node_id: str, *, for_good: bool = True) -> None:
        """From any thread. Unless it is for good, only the actor dies."""
        from warmcell.lifetime.portal import portal

        if for_good:
            self.nodes.pop(node_id, None)
        portal._get_loop().call_soon_threadsafe(self.transports[node_id].kill)

    def drain(self, node_id: str) -> None:
        self.nodes[node_id] = replace(self.nodes[node_id], is_draining=True)
