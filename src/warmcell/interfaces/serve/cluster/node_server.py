"""On a node: the server behind the front of `warmcell serve --ray`. Only the front reaches it, through the actor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from starlette.middleware import Middleware
from starlette.requests import HTTPConnection

from warmcell.core.records import dataclass
from warmcell.interfaces.serve.authentication import find_token
from warmcell.interfaces.serve.front.client_sockets import RelayedProtocol
from warmcell.interfaces.serve.node_server import SocketServer, start
from warmcell.interfaces.serve.quotas import TenantQuota
from warmcell.interfaces.serve.run_places import GpuAccess
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry, SandboxRegistry
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.languages.config import ProcessConfig
from warmcell.policy.model import SandboxPolicy

#: Headers of the front: the number of its count, and how many sandboxes, or uses of a GPU, the tenant has elsewhere.
ELSEWHERE, GPUS_ELSEWHERE = "x-warmcell-sandboxes-elsewhere", "x-warmcell-gpus-elsewhere"
#: A header of the front, which counts the GPU of this run itself.
GPU_IS_COUNTED = "x-warmcell-gpu-is-counted"
FRONT_HEADERS = frozenset(name.encode() for name in (ELSEWHERE, GPUS_ELSEWHERE, GPU_IS_COUNTED))
_gpu_is_counted: ContextVar[bool] = ContextVar("gpu_is_counted", default=False)


@dataclass(frozen=True, slots=True)
class Rules:
    """The tokens and the policy, which the front reads from its files: nodes do not have those."""

    tenants: tuple[Tenant, ...]
    policy: SandboxPolicy | None


@dataclass(frozen=True, slots=True)
class Definition:
    """`suffix` ends the ids of this node's sandboxes."""

    settings: Settings
    rules: Rules
    config: ProcessConfig
    suffix: str


class ClusterQuota(TenantQuota):
    """Counts what is on this node and, from the last count of the front, what is elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        #: By tenant: the number of the front's count, and what it found.
        self._elsewhere: dict[str, tuple[int, int]] = {}

    def note_elsewhere(self, tenant_id: str, number: int, found: int) -> None:
        """The count with the highest number stays: requests may overtake each other."""
        self._elsewhere[tenant_id] = max(self._elsewhere.get(tenant_id, (0, 0)), (number, found))

    def _count_elsewhere(self, tenant_id: str) -> int:
        return self._elsewhere.get(tenant_id, (0, 0))[1]

    def take(self, tenant_id: str, limit: int) -> bool:
        return super().take(tenant_id, limit - self._count_elsewhere(tenant_id))

    def count(self, tenant_id: str) -> int:
        return super().count(tenant_id) + self._count_elsewhere(tenant_id)

    def by_tenant(self) -> Counter[str]:
        return +self._used


class NodeGpus(GpuAccess):
    """Counts sandboxes and background runs. The front counts other runs: it knows when they begin and end."""

    @contextmanager
    def count_use(self, tenant: Tenant, has_gpu: bool) -> Iterator[Callable[[SandboxEntry], None]]:
        with super().count_use(tenant, has_gpu and not _gpu_is_counted.get()) as keep:
            yield keep


class NodeServerService(Service):
    def __init__(self, definition: Definition) -> None:
        self._rules = definition.rules
        super().__init__(definition.settings, definition.config)
        self.is_worker = True
        self.quota, self.gpu_quota = ClusterQuota(), ClusterQuota()
        self.gpus = NodeGpus(self._config, self.gpu_quota)
        self.sandboxes = SandboxRegistry(definition.suffix, self.quota)

    def _read_tenants(self) -> tuple[Tenant, ...]:
        return self._rules.tenants

    def _read_policy(self) -> SandboxPolicy | None:
        return self._rules.policy

    def use(self, rules: Rules) -> None:
        self._rules = rules
        self.reload()


class NodeServer(SocketServer):
    _service: NodeServerService

    def __init__(self, definition: Definition) -> None:
        service = NodeServerService(definition)
        super().__init__(service, [Middleware(_ElsewhereCounts, service=service)], RelayedProtocol)

    async def count_sandboxes(self) -> Counter[str]:
        """The sandboxes of this node, by tenant."""
        return self._service.quota.by_tenant()

    async def count_gpus(self) -> Counter[str]:
        """The sandboxes and background runs of this node with a GPU, by tenant."""
        return self._service.gpu_quota.by_tenant()

    async def use(self, rules: Rules) -> None:
        self._service.use(rules)

    async def drain(self) -> None:
        """Accept no new work, and end the endless streams."""
        self._service.draining.set()


class _ElsewhereCounts:
    """Records what the tenant has on other nodes, before more is made here."""

    def __init__(self, app: Any, service: NodeServerService) -> None:
        self._app, self._service = app, service
        self._quotas = ((ELSEWHERE, service.quota), (GPUS_ELSEWHERE, service.gpu_quota))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            connection = HTTPConnection(scope)
            _gpu_is_counted.set(GPU_IS_COUNTED in connection.headers)
            for name, quota in self._quotas:
                counted = connection.headers.get(name)
                if counted is not None and (tenant := self._service.tenant(find_token(connection))) is not None:
                    quota.note_elsewhere(tenant.id, *map(int, counted.split()))
        await self._app(scope, receive, send)


async def start_server(definition: Definition) -> NodeServer:
    return await start(partial(NodeServer, definition))
