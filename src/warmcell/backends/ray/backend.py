"""RayBackend: runs on the nodes of a Ray cluster, each with the cage that `ProcessBackend` gives it there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from warmcell.backends.base import BackendBase
from warmcell.backends.many import check_concurrency, run_many
from warmcell.backends.ray.cluster import Cluster, make_closed_error
from warmcell.backends.ray.cluster_images import ClusterImages
from warmcell.backends.ray.placement import Needs, Node, batch_places
from warmcell.backends.ray.program import RayProgram
from warmcell.backends.ray.ray_nodes import RayNodes
from warmcell.backends.registry import get_backend
from warmcell.backends.streaming import read_descriptor, refuse_descriptor, stream
from warmcell.backends.supervisors import supervisors_for
from warmcell.core import events
from warmcell.core.errors import BackendUnavailable, ExecutionTimeout, InvalidRequest, MemoryExceeded, NodeLost
from warmcell.core.light import on_error
from warmcell.core.records import replace
from warmcell.core.request_checks import check_whole
from warmcell.core.run_record import RunRecord
from warmcell.core.types import BackendCapabilities, EnforcedLimits, ExecRequest, ExecResult
from warmcell.languages.config import ProcessConfig
from warmcell.languages.registry import LanguageVersions
from warmcell.lifetime.ownership import own_until_exit
from warmcell.lifetime.portal import portal
from warmcell.policy.resolve import DEFAULT_POLICY

if TYPE_CHECKING:
    from warmcell.backends.built import Program
    from warmcell.backends.many import OnProgress, Requests
    from warmcell.backends.ray.node_link import NodeLink
    from warmcell.core.output_events import Outcome, StreamEvent
    from warmcell.core.types import Language
    from warmcell.images import Image
    from warmcell.policy.model import SandboxPolicy
    from warmcell.runner.listening import Listener

T = TypeVar("T")
#: Sends a run to a node and returns its answer.
Send = Callable[["NodeLink", "Listener | None"], Coroutine[Any, Any, ExecResult]]
#: Requests of a batch that are in memory at a time, at least: enough for nodes that join.
_BATCH_REQUESTS = 256
#: Runs of a batch at a time: two, as on one host. Cases of a judge have a processor each, so that none is late.
_RUNS_PER_CORE, _CASES_PER_CORE = 2, 1


class RayBackend(BackendBase):
    """`address` as in `ray.init`; None: the program's own connection to Ray, the cluster of this host or the one that
    `RAY_ADDRESS` names, or else a new one on this host.

    `config` and `policy` are those of the `ProcessBackend` on each node: paths and `max_concurrency` are the node's. A
    run whose node is lost is repeated elsewhere, `retries` times at most; then it raises `NodeLost`. Snapshots of
    sandboxes are kept at `snapshot_url`, an fsspec URL that all nodes reach, with the `snapshot_options` of its file
    system; None: on the sandbox's node. Joins the cluster at its first use. Safe to use from many threads and event
    loops; close it when done.
    """

    name = "ray"

    def __init__(
        self,
        address: str | None = None,
        *,
        config: ProcessConfig | None = None,
        policy: SandboxPolicy | None = None,
        retries: int = 2,
        snapshot_url: str | None = None,
        snapshot_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.config, self.policy = config or ProcessConfig(), policy or DEFAULT_POLICY
        self.retries = check_whole("retries", retries, 0, 100)
        self.snapshot_url, self.snapshot_options = _check_url(snapshot_url), dict(snapshot_options or {})
        make_backend = partial(get_backend, "process", config=config, policy=policy)
        self._cluster = Cluster(RayNodes(address), make_backend, self.config.queue_timeout)
        self._images = ClusterImages(self.links)
        self._is_closed = self._is_forked = False
        own_until_exit(self)

    def abandon(self) -> None:
        self._is_forked = True

    def capabilities(self) -> BackendCapabilities:
        """The languages of the nodes, and what all of them enforce. Joins the cluster."""
        links = self._call(self._open_links)
        found = [link.facts.capabilities for link in links]
        languages: dict[Language | str, None] = {}
        for one in found:
            languages |= dict.fromkeys(one.supported_languages)
        names = EnforcedLimits.__slots__
        held = {name: all(getattr(one.enforced_limits, name) for one in found) for name in names}
        classes = "/".join(sorted({one.isolation_class for one in found}))
        versions = LanguageVersions(tuple(languages), lambda language: self._call(self._ask_version, language))
        return BackendCapabilities(tuple(languages), classes, EnforcedLimits(**held), found[0].network, versions)

    def nodes(self) -> list[Node]:
        """Every node that could get work, with what runs on it now. Joins the cluster."""
        return self._call(self.describe_nodes)

    async def describe_nodes(self) -> list[Node]:
        """Like `nodes`, on the portal's event loop."""
        await self._cluster.open()
        return self._cluster.describe()

    def examine_nodes(self) -> list[tuple[Node, Any]]:
        """Each node with the report of `warmcell doctor` there. `NodeLost` in its place if the node was lost meanwhile,
        None if it gets no work. Joins the cluster.
        """
        return self._call(self._examine_nodes)

    async def _examine_nodes(self) -> list[tuple[Node, Any]]:
        await self._cluster.settle()
        nodes = self._cluster.describe()
        links = [self._cluster.links.get(node.id) for node in nodes]
        return list(zip(nodes, await asyncio.gather(*map(_examine, links)), strict=True))

    async def count_processors(self) -> int:
        """The number of processors of all nodes. Joins the cluster."""
        return sum(link.info.cores for link in await self._reach(self._open_links))

    # ---- runs ----

    async def execute(self, request: ExecRequest, *, listener: Listener | None = None) -> ExecResult:
        """Cancelling the task ends the run on its node before the cancellation is raised."""
        return await self._execute(request, listener, is_batch=False)

    async def _execute(self, request: ExecRequest, listener: Listener | None, *, is_batch: bool) -> ExecResult:
        with RunRecord(self.name, request, self.policy) as record:
            send = partial(_send_batch_run if is_batch else _send_run, request)
            work = partial(self._place, self._needs(request, is_batch=is_batch), send)
            record.result = await self._reach(work, listener)
            return record.result

    def execute_blocking(
        self, request: ExecRequest, *, stdin: int = -1, listener: Listener | None = None
    ) -> ExecResult:
        """Like `execute`, in the calling thread. The data of the descriptor `stdin` is read first, and sent with it."""
        request = read_descriptor(request, stdin)
        return self._call(self.execute, request, listener=listener)

    def stream(self, request: ExecRequest, *, stdin: int = -1) -> AsyncIterator[StreamEvent]:
        """`OutputEvent`s as the guest writes, then a `ResultEvent`. Closing the iterator ends the run.

        Not repeated on another node once output was delivered.
        """
        refuse_descriptor(self.name, stdin)
        return stream(lambda listener: self.execute(request, listener=listener))

    def run_many(
        self,
        requests: Requests,
        concurrency: int | None = None,
        processes: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> AsyncIterator[Outcome]:
        """Outcomes as they finish. By default each node carries out two runs for each processor, also one that joins
        later, and has the next ones if they are short; only a few hundred requests are in memory at a time.
        """
        supervisors_for(self, processes, ())  # refuses anything but 1
        if concurrency is not None:
            return run_many(self.execute, requests, check_concurrency(concurrency), on_progress)
        return self._run_batch(requests, on_progress)

    async def _run_batch(self, requests: Requests, on_progress: OnProgress | None) -> AsyncIterator[Outcome]:
        most = await self._count_batch_requests()
        runs = run_many(partial(self._execute, listener=None, is_batch=True), requests, most, on_progress)
        async with aclosing(runs) as outcomes:  # type: ignore[type-var]
            async for outcome in outcomes:
                yield outcome

    async def _count_batch_requests(self) -> int:
        """How many requests of a batch to have in memory."""
        links = await self._reach(self._open_links)
        return max(_BATCH_REQUESTS, 2 * sum(link.facts.slots for link in links))

    async def build(self, request: ExecRequest) -> Program:
        """Compiles the program on one node, to raise `BuildFailed` now; others build it when they run it."""
        key = uuid4().hex
        build, release = partial(_send_build, key, request), partial(self._release_program, key)
        with on_error(release):  # a node goes on with a build whose caller was cancelled
            await self._reach(partial(self._place, self._needs(request), build), None)
        execute = partial(self._run_program, key, request)
        return RayProgram(self.name, request, execute, release, self._count_batch_requests)

    def build_blocking(self, request: ExecRequest) -> Program:
        """Like `build`, in the calling thread."""
        return self._call(self.build, request)

    async def _run_program(
        self, key: str, definition: ExecRequest, request: ExecRequest, listener: Listener | None, is_case: bool = False
    ) -> ExecResult:
        self._check_open()
        send = partial(_send_case if is_case else _send_program_run, key, definition, request)
        needs = self._needs(request, is_batch=True, per_core=_CASES_PER_CORE) if is_case else self._needs(request)
        return await self._place(needs, send, listener)

    def _release_program(self, key: str) -> None:
        async def release() -> None:
            for link in self._cluster.links.values():
                link.release_program(key)

        if not self._is_closed and not self._is_forked:
            portal.post(release)

    async def _place(self, needs: Needs, send: Send, listener: Listener | None) -> ExecResult:
        """Carries it out on one node after the other until one of them stays."""
        loop = asyncio.get_running_loop()
        asked, losses = loop.time(), 0
        while True:
            link = await self._cluster.acquire(needs)
            waited = loop.time() - asked
            if events.listeners and (subject := events.current_run()):
                events.emit("run.started", subject, {"node": link.info.id})
            try:
                result = await send(link, listener)
                return replace(result, queued=result.queued + waited) if isinstance(result, ExecResult) else result
            except NodeLost as error:
                losses += 1
                if losses > self.retries or error.has_output:
                    raise
            finally:
                self._cluster.release(link)

    # ---- sandboxes ----

    async def place_sandbox(self, has_gpus: bool = False) -> NodeLink:
        """The node for a new sandbox, pinned to it until `release_sandbox`. For drivers of sandboxes."""
        return await self._reach(self._cluster.place_sandbox, has_gpus)

    async def provide_image(self, link: NodeLink, image: str | Image) -> str:
        """Returns when the node has the image; the reference with which a sandbox finds it there."""
        return await self._reach(self._images.provide, link, image)

    def hold_sandbox(self, link: NodeLink) -> None:
        """Count one more sandbox on this node: a fork, or the server on the node."""
        link.sandboxes += 1

    def release_sandbox(self, link: NodeLink) -> None:
        async def release() -> None:
            self._cluster.release_sandbox(link)

        if not self._is_closed and not self._is_forked:
            portal.post(release)

    def links(self) -> list[NodeLink]:
        """The nodes that carry out work now. For servers; from any thread."""
        return list(self._cluster.links.values())

    def _needs(self, request: ExecRequest, **batch: Any) -> Needs:
        return Needs(str(request.language), self.policy.gpus is not None, **batch)

    async def _ask_version(self, language: str) -> str:
        link = await self._cluster.acquire(Needs(language))
        try:
            return str(await link.call("version", language))
        finally:
            self._cluster.release(link)

    async def _open_links(self) -> list[NodeLink]:
        await self._cluster.open()
        return list(self._cluster.links.values())

    # ---- the portal's loop, and the end ----

    def _call(self, function: Callable[..., Coroutine[Any, Any, T]], *values: Any, **named: Any) -> T:
        self._check_open()
        return portal.call(function, *values, **named)

    async def _reach(self, function: Callable[..., Coroutine[Any, Any, T]], *values: Any) -> T:
        self._check_open()
        return await portal.call_async(function, *values)

    def _check_open(self) -> None:
        if self._is_forked:
            hint = "create backends after the fork, in a program that has not used Ray before"
            raise BackendUnavailable("a connection to Ray does not survive a fork", hint=hint)
        if self._is_closed:
            raise make_closed_error()

    def close(self) -> None:
        """Ends the runs in progress, which raise `BackendUnavailable`, and the actors. Leaves Ray if we joined it."""
        self._is_closed = True
        if not self._is_forked:
            portal.call(self._cluster.close)

    async def aclose(self) -> None:
        self._is_closed = True
        if not self._is_forked:
            await portal.call_async(self._cluster.close)

    def __repr__(self) -> str:
        return f"<RayBackend retries={self.retries}>"


def _check_url(url: str | None) -> str | None:
    if url is not None and (not isinstance(url, str) or "://" not in url):
        hint = "for a directory on a file system that all nodes share: file:///DIRECTORY"
        raise InvalidRequest("must be a URL that all nodes reach", field="snapshot_url", hint=hint)
    return url


async def _examine(link: NodeLink | None) -> Any:
    if link is None:
        return None
    try:
        return await link.call("examine")
    except NodeLost as error:
        return error


async def _send_run(request: ExecRequest, link: NodeLink, listener: Listener | None) -> ExecResult:
    result: ExecResult = await link.call("run", request, listener is not None, listener=listener)
    return result


async def _send_batch_run(request: ExecRequest, link: NodeLink, _: Listener | None) -> ExecResult:
    return await _time_batch_run(link, link.call("batch_run", request, batch_places(link.info.cores, _RUNS_PER_CORE)))


async def _time_batch_run(link: NodeLink, call: Awaitable[Any]) -> ExecResult:
    """Notes how long it took, also if it ran into a limit."""
    try:
        result: ExecResult = await call
    except (ExecutionTimeout, MemoryExceeded) as error:
        if error.result is not None:
            link.note_batch_run(error.result.duration)
        raise
    link.note_batch_run(result.duration)
    return result


async def _send_build(key: str, definition: ExecRequest, link: NodeLink, _: Listener | None) -> Any:
    await link.call("build", key, definition)
    link.programs.add(key)


async def _send_program_run(
    key: str, definition: ExecRequest, request: ExecRequest, link: NodeLink, listener: Listener | None
) -> ExecResult:
    values = _program_values(key, definition, request, link)
    result: ExecResult = await link.call("program_run", *values, listener is not None, listener=listener)
    link.programs.add(key)
    return result


async def _send_case(
    key: str, definition: ExecRequest, request: ExecRequest, link: NodeLink, _: Listener | None
) -> ExecResult:
    values, at_once = _program_values(key, definition, request, link), batch_places(link.info.cores, _CASES_PER_CORE)
    result = await _time_batch_run(link, link.call("batch_program_run", *values, at_once))
    link.programs.add(key)
    return result


def _program_values(key: str, definition: ExecRequest, request: ExecRequest, link: NodeLink) -> tuple[Any, ...]:
    """The program and the arguments of the run. The definition is sent until a run on the node has succeeded: a build
    that failed, or was cancelled before it began, is tried again.
    """
    arguments = (request.stdin, request.args, request.timeout, request.limits)
    return key, None if key in link.programs else definition, arguments
