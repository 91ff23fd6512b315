"""What stands behind every door: one backend, one queue, the tenants. Made once, and renewed in part by SIGHUP."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import SandboxError
from warmcell.core.records import replace
from warmcell.core.types import ExecRequest, Limits
from warmcell.interfaces.serve.ceiling import asked_limits, ceiling, check_time
from warmcell.interfaces.serve.front.shared_queue import FrontQueue
from warmcell.interfaces.serve.held_sandboxes import Held, HeldSandboxes, worker_mark
from warmcell.interfaces.serve.rates import AnswersUnderWay, Rates
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import Tenant, find_tenant, hashed, read_tokens
from warmcell.languages.config import ProcessConfig
from warmcell.languages.registry import canonical, find_language
from warmcell.lifetime.tenant_queue import TenantQueue
from warmcell.policy.model import SandboxPolicy
from warmcell.sandbox.asynchronous import AsyncSandbox

_log = logging.getLogger("warmcell.serve")
#: Where nobody needs a token everybody is this one.
EVERYBODY = Tenant("local", "local", "0" * 64, rate=0, connections=1 << 16)


class Service:
    """Belongs to the server's event loop. `reload` reads the files again; whoever closes it ends all that runs."""

    def __init__(
        self,
        settings: Settings,
        config: ProcessConfig | None = None,
        *,
        worker: int | None = None,
        queue: TenantQueue | FrontQueue | None = None,
    ) -> None:
        """`worker` and `queue`: one of several processes behind a front (worker.py)."""
        self.settings = settings
        #: Set when nothing new is taken any more: what would stand for ever ends.
        self.draining = asyncio.Event()
        self._config = config or ProcessConfig(python_path=settings.python)
        self._tenants = self._read_tenants()
        self.policy = self._read_policy()
        self.backend = self._make_backend()
        self._retired: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._under_way: dict[ProcessBackend, int] = {}
        self.held = HeldSandboxes("" if worker is None else worker_mark(worker))
        self.rates, self.under_way = Rates(), AnswersUnderWay()
        #: WebSockets that are open, by tenant.
        self.sockets: Counter[str] = Counter()
        #: What a protocol keeps beside sandboxes.
        self.extras: dict[str, Any] = {}
        self.on_close: list[Callable[[], Awaitable[None]]] = []
        #: Called with the tenants that are left.
        self.on_revoked: list[Callable[[set[str]], Awaitable[None]]] = []
        self.queue = queue or TenantQueue(self._config.most_at_once, settings.max_waiting)

    @property
    def is_draining(self) -> bool:
        return self.draining.is_set()

    def tenant(self, token: str | None) -> Tenant | None:
        """Whose request it is, or None for a token that is nobody's."""
        if self.settings.is_open:
            return EVERYBODY
        return find_tenant(self._tenants, token or "")

    def bounded(self, request: ExecRequest) -> ExecRequest:
        """The request as this server carries it out. What it asks beyond the ceiling it does not get."""
        check_time(request.timeout, self.settings.max_timeout)
        limits = asked_limits(request.limits, self.policy)
        if request.memory_limit_mb is not None and (request.limits is None or request.limits.memory_mb is None):
            limits = replace(limits, memory_mb=request.memory_limit_mb)
        return replace(request, language=canonical(str(request.language)), limits=limits)

    def language_names(self) -> list[str]:
        """What a request may call the languages that this host can run. Looks for toolchains: not in the loop."""
        found = map(str, self.backend.capabilities().supported_languages)
        return [name for own in found for name in (own, *find_language(own).aliases)]

    @property
    def has_network(self) -> bool:
        return self.policy is not None and (self.policy.allow_network or bool(self.policy.network_rules))

    def make_sandbox(
        self, tenant: Tenant, limits: Limits | None = None, *, is_offline: bool = False, **options: Any
    ) -> AsyncSandbox:
        """With the ceiling of this moment, which it keeps; `is_offline` for less of it."""
        policy = ceiling(self.policy)
        if is_offline:
            policy = replace(policy, allow_network=False, network_rules=())
        limits = asked_limits((limits or Limits()).capped_by(Limits(disk_mb=tenant.disk_mb or None)), self.policy)
        # A waiting cell for each sandbox that idles would cost more than it saves.
        config = replace(self._config, pool_size=1, pool_min=0)
        return AsyncSandbox(policy=policy, limits=limits, config=config, **options)

    @asynccontextmanager
    async def turn(self, tenant: Tenant, timeout: float | None = None) -> AsyncIterator[ProcessBackend]:
        """A place in the queue, and the backend to use while one has it."""
        patience = self.settings.queue_timeout if timeout is None else timeout
        async with self.queue.place(tenant.id, max(1, tenant.runs), patience):
            backend = self.backend
            self._under_way[backend] = self._under_way.get(backend, 0) + 1
            try:
                yield backend
            finally:
                self._under_way[backend] -= 1

    def reload(self) -> None:
        """Tokens and policy as the files have them now. A file with a mistake in it changes nothing."""
        try:
            tenants, policy = self._read_tenants(), self._read_policy()
        except SandboxError as error:
            _log.error("reload: %s; going on as before", error)
            return
        self._tenants = tenants
        if policy != self.policy:
            old, self.policy = self.backend, policy
            self.backend = self._make_backend()
            self._beside(self._retire(old))
        if not self.settings.is_open:
            self._beside(self._end_unknown({tenant.id for tenant in tenants}))
        _log.warning("reloaded")

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)

    async def _end_unknown(self, known: set[str]) -> None:
        """What stays of a token that was revoked: its sandboxes have secrets of their own, which would still work."""
        gone = [held for held in self.held.all() if held.tenant_id not in known]
        await asyncio.gather(*(self.held.remove(held) for held in gone), return_exceptions=True)
        for forget in self.on_revoked:
            await forget(known)

    async def aclose(self) -> None:
        """Ends all that runs, and whoever waits for it hears that it was us. May be called twice."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.draining.set()
        for task in self._retired:
            task.cancel()
        await self.held.aclose()
        for call in self.on_close:
            await call()
        for backend in {self.backend, *self._under_way}:
            await backend.aclose()

    async def _retire(self, backend: ProcessBackend) -> None:
        """Closes it when the last run that it began has ended."""
        while self._under_way.get(backend, 0):
            await asyncio.sleep(0.2)
        self._under_way.pop(backend, None)
        await backend.aclose()

    def _make_backend(self) -> ProcessBackend:
        return ProcessBackend.with_sandbox(self._config, policy=ceiling(self.policy))

    def _read_policy(self) -> SandboxPolicy | None:
        return SandboxPolicy.from_file(self.settings.policy) if self.settings.policy else None

    def _read_tenants(self) -> tuple[Tenant, ...]:
        if self.settings.tokens is not None:
            return read_tokens(self.settings.tokens)
        if self.settings.token is not None:
            return (replace(EVERYBODY, sha256=hashed(self.settings.token)),)
        return ()


def service_of(request: Any) -> Service:
    found: Service = request.app.state.service
    return found


def held_of(request: Any, tenant: Tenant) -> Held:
    """The sandbox that the path names, if it is this tenant's."""
    return service_of(request).held.find(tenant, request.path_params["id"])
