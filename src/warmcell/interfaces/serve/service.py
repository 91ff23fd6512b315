"""The state behind all routes: backend, queue, tenants, sandboxes. SIGHUP reloads the tokens and the policy."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypedDict

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core import events
from warmcell.core.errors import SandboxError
from warmcell.core.records import replace
from warmcell.core.types import ExecRequest, Limits
from warmcell.interfaces.serve.front.control import FrontQueue
from warmcell.interfaces.serve.host_resources import HostResources, connections_within_limit
from warmcell.interfaces.serve.quotas import SANDBOXES, SNAPSHOTS, SOCKETS, ConcurrencyLimiter, RateLimiter, TenantQuota
from warmcell.interfaces.serve.requests import OpenRequests
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.run_places import GpuAccess, Gpus, ImageAccess, ImageChoice, check_access
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry, SandboxRegistry, TypedState, worker_suffix
from warmcell.interfaces.serve.saved_state import SavedState
from warmcell.interfaces.serve.server_limits import check_timeout, resolve_limits, server_policy, share_of_slots
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.state_homes import Home
from warmcell.interfaces.serve.tokens import SCOPES, Tenant, find_tenant, hash_token, identify_file, read_tokens
from warmcell.languages.config import ProcessConfig
from warmcell.languages.host_tools import host_tools
from warmcell.languages.registry import canonical, find_language
from warmcell.lifetime.fair_semaphore import FairSemaphore
from warmcell.policy.model import SandboxPolicy
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.processes import AsyncProcess
from warmcell.workspace.private_directory import PrivateDirectory

_log = logging.getLogger("warmcell.serve")

#: A tenant's id, the hash of its token, and a scope; None stands for the secret of a sandbox.
Right = tuple[str, str, str | None]


class RunPlace(TypedDict):
    """The GPUs and the image that a request names: arguments of `run_slot` and `make_sandbox`."""

    gpus: Gpus | None
    image: ImageChoice | None


LOCAL_TENANT = Tenant("local", "local", "0" * 64, scopes=SCOPES, rate=0, connections=1 << 16, gpu_runs=1 << 16)


class Service:
    """The state of one server. Belongs to its event loop. `aclose` ends everything that runs."""

    def __init__(
        self,
        settings: Settings,
        config: ProcessConfig | None = None,
        *,
        worker: int | None = None,
        queue: FairSemaphore | FrontQueue | None = None,
        make_quota: Callable[[int], TenantQuota] = TenantQuota,
    ) -> None:
        """`worker`, `queue` and `make_quota` are given in a worker behind a front."""
        self.settings = settings
        #: Set at shutdown: no new work is accepted, and endless streams end.
        self.draining = asyncio.Event()
        self.shutdown_seconds = settings.shutdown_seconds
        self._config = config or ProcessConfig(python_path=settings.python)
        self._local_tenant = local_tenant(settings)
        #: The token file before it was read.
        self.token_file = None if settings.tokens is None else identify_file(settings.tokens)
        self._tenants = self._read_tenants()
        #: Ids of all tenants since the start. What others have saved stays: it may be the wrong token file.
        self._known = {tenant.id for tenant in self._tenants}
        self.policy, self.policy_version = self._read_policy(), 0
        self.backend = self._make_backend(self.policy)
        self.gpus = GpuAccess(self._config)
        self.images = ImageAccess(self._config, settings.images)
        if settings.is_open and self.has_network:
            _log.warning("guests have network access, and this server requires no token: they can use it; give --token")
        self._background: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        #: By backend: runs in progress. A reload replaces the backend; the old one closes with its last run.
        self._running: dict[ProcessBackend, int] = {}
        #: What the next server restores, with `--state`.
        self.saved = None if settings.state is None else SavedState(settings.state, worker or 0, settings.state_key)
        self.sandboxes = SandboxRegistry("" if worker is None else worker_suffix(worker), make_quota(SANDBOXES))
        self.snapshots, self.sockets = make_quota(SNAPSHOTS), make_quota(SOCKETS)
        self.rates, self.concurrency = RateLimiter(), ConcurrencyLimiter()
        #: By tenant: processes that outlive their requests, and how many are being started.
        self._processes: defaultdict[str, set[AsyncProcess]] = defaultdict(set)
        self._starting: Counter[str] = Counter()
        connections = connections_within_limit(settings.max_connections)
        # A worker also has connections to other workers, which relay requests to it.
        self.resources = HostResources(connections if worker is None else 2 * connections, settings.state)
        #: By right: tasks that are cancelled when it is lost.
        self._revocable: defaultdict[Right, set[asyncio.Future[Any]]] = defaultdict(set)
        self.reloads, self.open_requests = 0, OpenRequests()
        self.is_worker, self.sign_in_code_used = worker is not None, False
        #: State of protocols beside sandboxes.
        self.state = TypedState()
        #: Called at the beginning of a shutdown, while the sandboxes are there.
        self.on_stop: list[Callable[[], Awaitable[None]]] = []
        self.on_close: list[Callable[[], Awaitable[None]]] = []
        #: Called after a reload with the ids of the tenants that were revoked.
        self.on_revoked: list[Callable[[set[str]], Awaitable[None]]] = []
        self.queue = queue or FairSemaphore(self._config.most_at_once, settings.max_waiting)

    def describe_work(self) -> str:
        runs, sandboxes = sum(self._running.values()), len(self.sandboxes.all())
        end = "end" if self.saved is None else "are saved"
        return f"{runs} runs may finish within {self.settings.drain_timeout:g} s, {sandboxes} sandboxes {end}"

    @property
    def is_draining(self) -> bool:
        return self.draining.is_set()

    def tenant(self, token: str | None) -> Tenant | None:
        """The tenant of a token, or None if the token is unknown."""
        return self._local_tenant if self.settings.is_open else find_tenant(self._tenants, token or "")

    def find_tenant_by_id(self, identity: str) -> Tenant | None:
        """The tenant of a saved object; None if no token is its own."""
        known = (self._local_tenant,) if self.settings.is_open or self.settings.tokens is None else self._tenants
        return next((tenant for tenant in (*known, *self._tenants) if tenant.id == identity), None)

    def make_home(self) -> Home:
        """Make a directory for the files of a sandbox or a snapshot."""
        return PrivateDirectory("work") if self.saved is None else self.saved.make_home()

    def apply_limits(self, request: ExecRequest) -> ExecRequest:
        """Return the request with its limits resolved. Raises `InvalidRequest` for too long a timeout."""
        check_timeout(request.timeout, self.settings.max_timeout)
        limits = resolve_limits(request.limits, self.policy)
        if request.memory_limit_mb is not None and (request.limits is None or request.limits.memory_mb is None):
            limits = replace(limits, memory_mb=request.memory_limit_mb)
        return replace(request, language=canonical(str(request.language)), limits=limits)

    def language_names(self) -> list[str]:
        """Names and aliases of the languages this host can run. Looks for toolchains: do not call in the loop."""
        found = map(str, self.backend.capabilities().supported_languages)
        return [name for own in found for name in (own, *find_language(own).aliases)]

    def search_path(self) -> str:
        """PATH without directories of guests, for our own programs in sandboxes."""
        return ":".join(host_tools(self._config).path)

    @property
    def has_open_network(self) -> bool:
        """Whether guests use the host's network."""
        return self.policy is not None and self.policy.allow_network

    @property
    def has_network(self) -> bool:
        return self.policy is not None and (self.policy.allow_network or bool(self.policy.network_rules))

    def make_sandbox(
        self,
        tenant: Tenant,
        limits: Limits | None = None,
        *,
        is_offline: bool = False,
        gpus: Gpus | None = None,
        image: ImageChoice | None = None,
        **options: Any,
    ) -> AsyncSandbox:
        """Make a sandbox under the present policy, which it keeps; `is_offline` removes its network."""
        self.resources.check()
        policy = replace(server_policy(self.policy), gpus=gpus)
        if is_offline:
            policy = replace(policy, allow_network=False, network_rules=())
        limits = resolve_limits((limits or Limits()).cap_with(Limits(disk_mb=tenant.disk_mb or None)), self.policy)
        # A warm cell for each idle sandbox would cost more than it saves.
        config = replace(self._config, pool_size=1, pool_min=0)
        if image is not None:
            options |= {"image": image.image, "user": image.user}
        made = AsyncSandbox(policy=policy, limits=limits, config=config, **options)
        if self.saved is not None:
            made.enable_session_images()
        return made

    async def find_place(self, tenant: Tenant, gpus: object, image: str | None, user: str | None) -> RunPlace:
        """Find the devices and the image that a request names. Raises if it may not use them or they do not exist."""
        return {"image": await self.images.find(image, user), "gpus": check_access(tenant, gpus, self.policy)}

    def check_policy(self, entry: SandboxEntry) -> None:
        """Raises `HttpError` 409 for a fork of a sandbox that was made under another policy than the present one."""
        if entry.policy_version != self.policy_version:
            raise HttpError(409, "the server's policy has changed since the sandbox was made; create a new one")

    @asynccontextmanager
    async def run_slot(
        self, tenant: Tenant, timeout: float | None = None, gpus: Gpus | None = None, image: ImageChoice | None = None
    ) -> AsyncIterator[ProcessBackend]:
        """Wait for a slot, and yield the backend to use while holding it. `gpus` and `image` are from `find_place`."""
        self.resources.check()
        patience = self.settings.queue_timeout if timeout is None else timeout
        began = time.monotonic()
        with self.gpus.count_use(tenant, gpus is not None):
            async with self._queue_slot(tenant, patience):
                self.concurrency.check_unread(tenant)
                backend = await self._find_backend(gpus, image)
                self._running[backend] = self._running.get(backend, 0) + 1
                try:
                    with events.annotate(waited=time.monotonic() - began):
                        yield backend
                finally:
                    self._running[backend] -= 1

    async def _find_backend(self, gpus: Gpus | None, image: ImageChoice | None) -> ProcessBackend:
        if image is not None:
            backend, displaced = await self.images.backend(server_policy(self.policy), gpus, image)
        elif gpus is not None:
            backend, displaced = self.gpus.backend(server_policy(self.policy), gpus)
        else:
            return self.backend
        for retired in displaced:
            self.run_in_background(self._retire(retired))
        return backend

    async def start_process(self, tenant: Tenant, start: Callable[[], Awaitable[AsyncProcess]]) -> AsyncProcess:
        """Start a process that outlives its request: it waits for a slot, and counts for its tenant until it ends.

        Raises `HttpError` 429 if the token has as many processes as it may have runs.
        """
        live = self._processes[tenant.id]
        live -= {process for process in live if not process.is_running}
        if self.settings.tokens is not None and len(live) + self._starting[tenant.id] >= max(1, tenant.runs):
            message = f"this token already has {max(1, tenant.runs)} processes; end one"
            raise HttpError(429, message, headers={"Retry-After": "5"})
        self._starting[tenant.id] += 1
        try:
            async with self.run_slot(tenant):
                process = await start()
                live.add(process)
                return process
        finally:
            self._starting[tenant.id] -= 1

    @asynccontextmanager
    async def _queue_slot(self, tenant: Tenant, patience: float) -> AsyncIterator[None]:
        """Wait for a slot of the queue, and emit events about the wait."""
        subject, is_waiting = secrets.token_hex(8), True
        if events.listeners:
            events.emit("queue.entered", subject, {})
        try:
            async with self.queue.slot(tenant.id, self._share(tenant), patience):
                is_waiting = False
                if events.listeners:
                    events.emit("queue.left", subject, {})
                yield
        finally:
            if is_waiting and events.listeners:
                events.emit("queue.left", subject, {})

    def _share(self, tenant: Tenant) -> int:
        return share_of_slots(tenant, self._config.most_at_once, has_others=self.settings.tokens is not None)

    def reload(self) -> None:
        """Read the token and policy files again. If one of them has an error, keep the present state."""
        try:
            tenants, policy = self._read_tenants(), self._read_policy()
            backend = self.backend if policy == self.policy else self._make_backend(policy)
        except SandboxError as error:
            _log.error("reload failed, keeping the previous state: %s", error)
            return
        self._tenants = tenants
        for entry in self.sandboxes.all():
            entry.tenant = self._find_present(entry.tenant_id) or entry.tenant  # with its present quotas
        self.reloads += 1
        if backend is not self.backend:
            old, self.backend, self.policy = self.backend, backend, policy
            self.policy_version = self.sandboxes.policy_version = self.policy_version + 1
            for retired in (old, *self._take_others()):
                self.run_in_background(self._retire(retired))
        self.run_in_background(self.end_revoked())
        _log.warning("reloaded the token and policy files")

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it as a task that is cancelled when the service closes."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def revocable(self, tenant: Tenant, scope: str | None) -> set[asyncio.Future[Any]]:
        """Tasks to cancel when the token is revoked or loses the scope."""
        return self._revocable[tenant.id, tenant.sha256, scope]

    def has_right(self, tenant: Tenant, scope: str | None) -> bool:
        """Whether a token that was accepted before still exists and has the scope."""
        return self._is_present((tenant.id, tenant.sha256, scope))

    def _is_present(self, right: Right) -> bool:
        identity, sha256, scope = right
        if self.settings.is_open or not identity:  # no token was needed
            return True
        tenant = self._find_present(identity)
        # Without a scope it is the secret of a sandbox, not the token.
        return tenant is not None and (scope is None or (scope in tenant.scopes and sha256 == tenant.sha256))

    def _find_present(self, identity: str) -> Tenant | None:
        return next((tenant for tenant in self._tenants if tenant.id == identity), None)

    def _may_have(self, entry: SandboxEntry) -> bool:
        scopes = ("sandbox", "gpu") if entry.has_gpu else ("sandbox",)
        tenant = self._find_present(entry.tenant_id)
        return tenant is not None and set(scopes) <= set(tenant.scopes)

    async def end_revoked(self) -> None:
        """End the requests and sandboxes of tokens that were revoked, or have lost the scope that these need."""
        if self.settings.is_open:
            return
        for right, tasks in list(self._revocable.items()):
            if not self._is_present(right):
                for task in list(tasks):
                    task.cancel()
        present = {tenant.id for tenant in self._tenants}
        self._known |= present
        ended = [entry for entry in self.sandboxes.all() if not self._may_have(entry)]
        await asyncio.gather(*(self.sandboxes.remove(entry) for entry in ended), return_exceptions=True)
        revoked = self._known - present
        await self._call_each([partial(forget, revoked) for forget in self.on_revoked], "ending what was revoked")

    async def aclose(self) -> None:
        """End everything that runs; clients that wait for it get an error about the host. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.draining.set()
        for task in self._background:
            task.cancel()
        await self._call_each(self.on_stop)
        await self.sandboxes.aclose()
        backends = [backend.aclose for backend in {self.backend, *self._running, *self._take_others()}]
        await self._call_each([*self.on_close, *backends])
        if self.saved is not None:
            self.saved.close()

    async def _call_each(self, calls: Sequence[Callable[[], Awaitable[None]]], doing: str = "shutting down") -> None:
        for call in calls:
            try:
                await call()
            except Exception:  # the others have to end too
                _log.exception("an error while %s", doing)

    async def _retire(self, backend: ProcessBackend) -> None:
        """Close a replaced backend when its last run has ended."""
        while self._running.get(backend, 0):
            await asyncio.sleep(0.2)
        self._running.pop(backend, None)
        await backend.aclose()

    def _take_others(self) -> list[ProcessBackend]:
        """Remove the backends for GPUs and images, for the caller to close."""
        return [*self.gpus.take_backends(), *self.images.take_backends()]

    def _make_backend(self, policy: SandboxPolicy | None) -> ProcessBackend:
        """Make a backend without GPUs: requests that name some use another one."""
        return ProcessBackend.with_sandbox(self._config, policy=replace(server_policy(policy), gpus=None))

    def _read_policy(self) -> SandboxPolicy | None:
        return SandboxPolicy.from_file(self.settings.policy) if self.settings.policy else None

    def _read_tenants(self) -> tuple[Tenant, ...]:
        return read_tenants(self.settings)


def local_tenant(settings: Settings) -> Tenant:
    """The tenant of every client where no token file is used."""
    return replace(LOCAL_TENANT, sandboxes=settings.sandboxes)


def read_tenants(settings: Settings) -> tuple[Tenant, ...]:
    """The tenants with a token; none if no token is required."""
    if settings.tokens is not None:
        return read_tokens(settings.tokens)
    if settings.token is not None:
        return (replace(local_tenant(settings), sha256=hash_token(settings.token)),)
    return ()


def get_service(request: Any) -> Service:
    found: Service = request.app.state.service
    return found


def get_entry(request: Any, tenant: Tenant) -> SandboxEntry:
    """The sandbox named in the path. Raises `SandboxNotFound` if it does not belong to the tenant."""
    return get_service(request).sandboxes.find(tenant, request.path_params["id"])
