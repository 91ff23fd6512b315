"""The nodes behind the front: a server on each, opened when the node joins and given up when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

from warmcell.backends.ray.backend import RayBackend
from warmcell.backends.ray.node_link import NodeLink
from warmcell.backends.ray.node_service import FRONT
from warmcell.backends.ray.placement import Needs, Node, NodeFacts, NodeInfo, choose
from warmcell.core.errors import BackendUnavailable, NodeLost, SandboxError
from warmcell.core.records import replace
from warmcell.interfaces.serve.cluster.node_server import Definition, Rules
from warmcell.interfaces.serve.cluster.placement import SUFFIX_DIGITS, choose_home
from warmcell.interfaces.serve.front.relay import Peer
from warmcell.interfaces.serve.sandbox_registry import SandboxLost, SandboxNotFound
from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import cancel_and_wait

_log = logging.getLogger("warmcell.serve")
_LOOK_SECONDS = 0.5
#: Lost nodes that are remembered, to tell their sandboxes from those that never existed.
_MOST_LOST = 4096


class NodePeer(Peer):
    """The server on one node. `running` and `sandboxes` count what this front has there, for placement."""

    def __init__(self, link: NodeLink, path: str) -> None:
        super().__init__(f"node {link.info.id[:12]}", path)
        self.link, self.suffix = link, suffix_of(link)
        self.labels = {"node": self.suffix}
        self.running = self.sandboxes = 0
        self.batch_run_seconds: float | None = None
        #: By tenant: sandboxes that are being made; and what is being made that may have a GPU.
        self.creating: Counter[str] = Counter()
        self.creating_with_gpu: Counter[str] = Counter()

    @property
    def info(self) -> NodeInfo:
        return self.link.info

    @property
    def facts(self) -> NodeFacts:
        return self.link.facts

    @property
    def loss(self) -> SandboxError | None:
        return self.link.lost


class ClusterNodes:
    """Belongs to the front's event loop. `define` describes the server of a node by the suffix of its ids."""

    def __init__(self, backend: RayBackend, define: Callable[[str], Definition]) -> None:
        self.backend, self._define = backend, define
        self._peers: dict[str, NodePeer] = {}
        self._opening: dict[NodeLink, asyncio.Task[None]] = {}
        self._lost: dict[str, NodeLost] = {}
        #: Called when nodes have joined or left.
        self.on_change: Callable[[], object] = lambda: None

    @property
    def ready(self) -> list[NodePeer]:
        return [peer for peer in self._peers.values() if peer.loss is None]

    def choose(self, needs: Needs) -> NodePeer:
        # The front's own queue bounds the runs.
        peer = choose(self.ready, Needs(needs.language, needs.has_gpus, is_sandbox=True))
        if peer is None:
            what = " with a GPU" if needs.has_gpus else ""
            raise BackendUnavailable(f"no node{what} of the cluster takes work now", hint="try again later")
        return peer

    def choose_home(self, token: str) -> NodePeer:
        peer = choose_home(self.ready, token)
        if peer is None:
            raise BackendUnavailable("no node of the cluster takes work now", hint="try again later")
        return peer

    def find(self, identity: str) -> NodePeer:
        """The node of a sandbox. Raises `SandboxLost` if that was lost."""
        suffix = identity[-SUFFIX_DIGITS:]
        peer = self._peers.get(suffix)
        lost = self._lost.get(suffix) if peer is None else peer.loss
        if lost is not None:
            raise SandboxLost(getattr(lost, "node", suffix), getattr(lost, "reason", lost.message))
        if peer is None:
            raise SandboxNotFound("sandbox not found")
        return peer

    async def count_sandboxes(self) -> dict[NodePeer, Counter[str]]:
        """Count sandboxes by node and tenant, including those that are being made."""
        found = await self._count("count_sandboxes", lambda peer: peer.creating)
        for peer, count in found.items():
            peer.sandboxes = count.total()
        return found

    async def count_gpus(self) -> dict[NodePeer, Counter[str]]:
        """The same for sandboxes and background runs with a GPU."""
        return await self._count("count_gpus", lambda peer: peer.creating_with_gpu)

    async def _count(
        self, method: str, creating_on: Callable[[NodePeer], Counter[str]]
    ) -> dict[NodePeer, Counter[str]]:
        peers = self.ready
        # A node may answer before it has one that is made while the answer is on its way.
        before = [+creating_on(peer) for peer in peers]
        counts = await self._ask_each(peers, method)
        found: dict[NodePeer, Counter[str]] = {}
        for peer, creating, count in zip(peers, before, counts, strict=True):
            if isinstance(count, Counter):
                # One that is being made may be in both: then the quota is reached one too early, for a moment.
                found[peer] = count + (creating | creating_on(peer))
        return found

    async def describe(self) -> list[Node]:
        """Every node of the cluster, even if it does not serve, with what this front has there."""
        work = {peer.info.id: peer.active_requests for peer in self.ready}
        nodes = await portal.call_async(self.backend.describe_nodes)
        return [
            replace(node, running=work.get(node.id, 0), reason=node.reason or ("" if node.id in work else "starting"))
            for node in nodes
        ]

    async def use(self, rules: Rules) -> None:
        await self._ask_each(self.ready, "use", rules)

    async def drain(self) -> None:
        await self._ask_each(self.ready, "drain")

    async def _ask_each(self, peers: list[NodePeer], method: str, *values: object) -> list[object]:
        """Call a method on all peers; return the answers in order. The answer of a lost node is its error."""

        async def ask() -> list[object]:
            calls = [peer.link.call("ask_server", FRONT, method, *values) for peer in peers]
            return list(await asyncio.gather(*calls, return_exceptions=True))

        answers = await portal.call_async(ask)
        for peer, answer in zip(peers, answers, strict=True):
            if isinstance(answer, BaseException) and peer.loss is None:
                _log.error("%s failed to %s: %s", peer.name, method.replace("_", " "), answer)
        return answers

    # ---- joining and leaving ----

    async def watch(self) -> None:
        """Follow the changes of the cluster until cancelled."""
        while True:
            self._refresh()
            await asyncio.sleep(_LOOK_SECONDS)

    async def wait_for_first(self) -> None:
        """Wait until a node serves. Raises the reason if no node can."""
        while not self.ready:
            self._refresh()
            opening = list(self._opening.values())
            if not opening:
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            done, _ = await asyncio.wait(opening, return_when=asyncio.FIRST_COMPLETED)
            if not self.ready and len(done) == len(opening):
                done.pop().result()

    def _refresh(self) -> None:
        for peer in [peer for peer in self._peers.values() if peer.loss is not None]:
            self._forget(peer)
        known = {peer.link for peer in self._peers.values()}
        for link in self.backend.links():
            if link not in known and link not in self._opening and link.lost is None:
                task = self._opening[link] = asyncio.ensure_future(self._open(link))
                task.add_done_callback(partial(self._finish_opening, link))
        for peer in self.ready:
            if peer.info.is_draining:
                self._retire_if_empty(peer)

    async def _open(self, link: NodeLink) -> None:
        definition = self._define(suffix_of(link))
        await portal.call_async(link.call, "open_server", FRONT, definition)
        path = await portal.call_async(link.socket_path, FRONT)
        while (rules := self._define(suffix_of(link)).rules) != definition.rules:  # they were reloaded meanwhile
            await portal.call_async(link.call, "ask_server", FRONT, "use", rules)
            definition = replace(definition, rules=rules)
        self.backend.hold_sandbox(link)  # the node drains when its sandboxes have ended, which we count
        # The same node, after its actor died: its sandboxes are lost.
        self._peers[suffix_of(link)] = NodePeer(link, path)
        self.on_change()

    def _finish_opening(self, link: NodeLink, task: asyncio.Task[None]) -> None:
        self._opening.pop(link, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("cannot serve sandboxes on node %s: %s", link.info.id[:12], error)

    def _forget(self, peer: NodePeer) -> None:
        del self._peers[peer.suffix]
        lost = peer.loss
        assert lost is not None
        if isinstance(lost, NodeLost):
            _log.warning("%s", lost.message)
            self._lost[peer.suffix] = lost
            while len(self._lost) > _MOST_LOST:
                del self._lost[next(iter(self._lost))]
        self.on_change()

    def _retire_if_empty(self, peer: NodePeer) -> None:
        async def retire() -> None:
            counts = await self.count_sandboxes()
            if not counts.get(peer) and not peer.active_requests:
                self.backend.release_sandbox(peer.link)

        if peer.link not in self._opening:  # one look at a time
            task = self._opening[peer.link] = asyncio.ensure_future(retire())
            task.add_done_callback(partial(self._finish_opening, peer.link))

    async def close(self) -> None:
        await cancel_and_wait(*self._opening.values())
        await self.backend.aclose()


def suffix_of(link: NodeLink) -> str:
    return link.info.id[:SUFFIX_DIGITS]
