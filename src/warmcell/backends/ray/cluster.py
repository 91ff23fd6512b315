"""Cluster: the nodes that carry out runs for one backend, and the line of runs that wait for them.

Everything here runs on the portal's loop, so that nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from warmcell.backends.ray.node_link import NodeLink
from warmcell.backends.ray.node_service import own_version
from warmcell.backends.ray.placement import Needs, Node, NodeInfo, choose, usable
from warmcell.core.errors import BackendBusy, BackendUnavailable, SandboxError
from warmcell.lifetime.threads import in_thread

if TYPE_CHECKING:
    from warmcell.backends.ray.ray_nodes import RayNodes, RayTransport

_LOOK_SECONDS = 1.0
_START_SECONDS = 120.0
#: A node whose actor could not start is tried again after this.
_AGAIN_SECONDS = 30.0


class _Waiter:
    def __init__(self, needs: Needs, number: int) -> None:
        self.needs, self.number = needs, number
        self.link: asyncio.Future[NodeLink] = asyncio.get_running_loop().create_future()


class Cluster:
    def __init__(self, nodes: RayNodes, make_backend: Callable[[], Any], queue_timeout: float) -> None:
        self._nodes, self._make_backend, self._queue_timeout = nodes, make_backend, queue_timeout
        self.links: dict[str, NodeLink] = {}
        self._known: dict[str, NodeInfo] = {}
        #: Why a node gets no work, and when it is tried again.
        self._unfit: dict[str, tuple[SandboxError, float]] = {}
        self._starts: dict[str, asyncio.Task[None]] = {}
        #: Those that wait, by what they need: a batch has hundreds in one line, and only its first is looked at.
        self._lines: dict[Needs, deque[_Waiter]] = {}
        self._numbers = count()
        self._opening: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    # ---- slots ----

    async def acquire(self, needs: Needs) -> NodeLink:
        """A slot on a node; the caller releases it. Those that cannot have one wait in order.

        `BackendBusy` after the queue timeout, except for batches, which have time.
        """
        await self.open()
        waiter = _Waiter(needs, next(self._numbers))
        self._lines.setdefault(needs, deque()).append(waiter)
        self._dispatch()
        seconds = None if needs.is_batch else self._queue_timeout
        try:
            async with asyncio.timeout(seconds):
                return await waiter.link
        except BaseException as error:
            self._leave_line(waiter)
            if isinstance(error, TimeoutError):
                raise BackendBusy(self._queue_timeout) from None
            raise

    def release(self, link: NodeLink) -> None:
        link.running -= 1
        self._retire_if_empty(link)
        self._dispatch()

    async def place_sandbox(self, has_gpus: bool) -> NodeLink:
        """The node for a new sandbox, which counts there until `release_sandbox`."""
        link = await self.acquire(Needs("", has_gpus, is_sandbox=True))
        link.sandboxes += 1
        self.release(link)
        return link

    def release_sandbox(self, link: NodeLink) -> None:
        link.sandboxes -= 1
        self._retire_if_empty(link)

    def _retire_if_empty(self, link: NodeLink) -> None:
        if link.info.is_draining and not link.running and not link.sandboxes and link.lost is None:
            self._retire(link)

    def _leave_line(self, waiter: _Waiter) -> None:
        if waiter in self._lines.get(waiter.needs, ()):
            self._remove(waiter)
        elif waiter.link.done() and not waiter.link.cancelled() and waiter.link.exception() is None:
            self.release(waiter.link.result())

    def _remove(self, waiter: _Waiter) -> None:
        line = self._lines[waiter.needs]
        line.remove(waiter)
        if not line:
            del self._lines[waiter.needs]

    def _dispatch(self) -> None:
        """Gives free slots to those that wait, the first one first. One that cannot have any holds up its own line
        only: others need something else.
        """
        lines = set(self._lines)
        while lines:
            waiter = min((self._lines[needs][0] for needs in lines), key=lambda waiter: waiter.number)
            link = choose(self.links.values(), waiter.needs)
            if link is None:
                lines.remove(waiter.needs)
                continue
            self._remove(waiter)
            if waiter.needs not in self._lines:
                lines.remove(waiter.needs)
            if not waiter.link.done():
                link.running += 1
                waiter.link.set_result(link)

    # ---- nodes ----

    async def open(self) -> None:
        """Joins the cluster and waits for its first node. Raises if no node can carry out runs."""
        if self._closing is not None:
            raise make_closed_error()
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.ensure_future(self._open())
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        if self._watch is None:
            await in_thread(self._nodes.join)
            await self._refresh()
            self._watch = asyncio.ensure_future(self._watch_nodes())
        while not self.links and self._starts:
            await asyncio.wait(self._starts.values(), return_when=asyncio.FIRST_COMPLETED)
        if not self.links:
            raise self._no_node()

    async def settle(self) -> None:
        """Joins the cluster and waits until the actor of each node has started or failed. `describe` says why."""
        try:
            await self.open()
        except SandboxError:
            if not self._known:
                raise
        while self._starts:
            await asyncio.wait(self._starts.values())

    def _no_node(self) -> SandboxError:
        for reason, _ in self._unfit.values():
            return reason
        return BackendUnavailable("the Ray cluster has no node that can run anything", hint="see `ray status`")

    @property
    def _is_gpu_starting(self) -> bool:
        return any(node.gpus and node.id in self._starts for node in self._known.values())

    def _no_gpu(self) -> SandboxError:
        for node in self._known.values():
            if node.gpus and node.id in self._unfit:
                return self._unfit[node.id][0]
        hint = "start Ray with --num-gpus on a node that has one, or leave the policy without GPUs"
        return BackendUnavailable("no node of the Ray cluster that gets work has a GPU", hint=hint)

    async def _watch_nodes(self) -> None:
        last_seen = last_gpu_seen = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._refresh()
            except Exception as error:  # the head of the cluster is gone, or restarts
                reason = f"the Ray cluster does not answer: {error}"
                if time.monotonic() - last_seen > self._queue_timeout:
                    self._fail_waiting(BackendUnavailable(reason))
                continue
            if self.links:
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > self._queue_timeout:
                self._fail_waiting(self._no_node())
            if any(link.info.gpus and not link.info.is_draining for link in self.links.values()):
                last_gpu_seen = time.monotonic()
            elif time.monotonic() - last_gpu_seen > self._queue_timeout and not self._is_gpu_starting:
                self._fail_waiting(self._no_gpu(), lambda needs: needs.has_gpus)  # batches have no other end

    async def _refresh(self) -> None:
        """Starts actors on nodes that joined, and forgets nodes that are gone."""
        alive = {node.id: node for node in usable(await in_thread(self._nodes.list))}
        self._known = alive
        for link in tuple(self.links.values()):
            if link.info.id not in alive:
                link.lose("it left the cluster")
                continue
            link.info = alive[link.info.id]
            self._retire_if_empty(link)
        now = time.monotonic()
        self._unfit = {key: value for key, value in self._unfit.items() if key in alive and value[1] > now}
        for node in alive.values():
            if node.id not in self.links and node.id not in self._unfit and not node.is_draining:
                self._start(node)

    def _start(self, node: NodeInfo) -> None:
        if node.id not in self._starts and self._closing is None:
            task = self._starts[node.id] = asyncio.ensure_future(self._start_link(node))
            task.add_done_callback(lambda _: self._starts.pop(node.id, None))

    async def _start_link(self, node: NodeInfo) -> None:
        transport: RayTransport | None = None
        try:
            async with asyncio.timeout(_START_SECONDS):
                transport = await in_thread(lambda: self._nodes.start(node.id, self._make_backend))
                facts = await transport.start()
            if facts.version != own_version():
                raise BackendUnavailable(
                    f"node {node.address} has warmcell {facts.version}, and this program {own_version()}",
                    hint="install the same version on every node",
                )
        except BaseException as error:
            if transport is not None:
                transport.kill()
            # Any error, such as that of unpickling what another version sent: the next look would try again at once.
            if not isinstance(error, Exception):
                raise
            self._unfit[node.id] = (_start_error(node, error), time.monotonic() + _AGAIN_SECONDS)
            return
        self.links[node.id] = NodeLink(node, facts, transport, self._forget)
        self._dispatch()

    def _forget(self, link: NodeLink) -> None:
        """A lost link. If only the actor died, the next look at the cluster starts another."""
        if self.links.get(link.info.id) is link:
            del self.links[link.info.id]

    def _retire(self, link: NodeLink) -> None:
        """A node that drains and has nothing left to do."""
        self._forget(link)
        task = asyncio.ensure_future(link.close(BackendUnavailable("the node was drained")))
        self._starts[f"retiring {link.info.id}"] = task
        task.add_done_callback(lambda _: self._starts.pop(f"retiring {link.info.id}", None))

    def describe(self) -> list[Node]:
        def describe_one(node: NodeInfo) -> Node:
            link, unfit = self.links.get(node.id), self._unfit.get(node.id)
            kind = link.facts.capabilities.isolation_class if link is not None else "unavailable"
            reason = "draining" if node.is_draining else str(unfit[0]) if unfit else "" if link else "starting"
            running = link.running + link.sandboxes if link is not None else 0
            return Node(node.id, node.address, kind, node.cores, node.gpus, running, reason)

        return [describe_one(node) for node in sorted(self._known.values(), key=lambda node: node.id)]

    # ---- the end ----

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        tasks = [task for task in (self._watch, self._opening, *self._starts.values()) if task is not None]
        for task in tasks:
            task.cancel()
        self._fail_waiting(make_closed_error())
        await asyncio.gather(*(link.close(make_closed_error("during the run")) for link in self.links.values()))
        self.links.clear()
        await asyncio.gather(*tasks, return_exceptions=True)
        await in_thread(self._nodes.leave)

    def _fail_waiting(self, error: SandboxError, is_meant: Callable[[Needs], object] = lambda _: True) -> None:
        failed = [self._lines.pop(needs) for needs in tuple(self._lines) if is_meant(needs)]
        for waiter in chain.from_iterable(failed):
            if not waiter.link.done():
                waiter.link.set_exception(error)


def make_closed_error(when: str = "") -> BackendUnavailable:
    return BackendUnavailable(" ".join(filter(None, ("the ray backend was closed", when))), hint="create a new one")


def _start_error(node: NodeInfo, error: Exception) -> SandboxError:
    if isinstance(error, SandboxError):
        return error
    if isinstance(error, ConnectionError | TimeoutError):
        reason = str(error) or f"it did not start within {_START_SECONDS:g} s"
    else:
        reason = f"{type(error).__name__}: {error}"
    return BackendUnavailable(
        f"node {node.address} cannot run anything: {reason}", hint="install the same version of warmcell on every node"
    )
