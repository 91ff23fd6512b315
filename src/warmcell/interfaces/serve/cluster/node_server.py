"""On a node: the server behind the front of `warmcell serve --ray`. Only the front reaches it, through the actor."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from starlette.middleware import Middleware
from starlette.requests import HTTPConnection

from warmcell.core.records import dataclass
from warmcell.interfaces.serve.authentication import find_token
from warmcell.interfaces.serve.front.client_sockets import RelayedProtocol
from warmcell.interfaces.serve.node_server import SocketServer, start
from warmcell.interfaces.serve.quotas import TenantQuota
from warmcell.interfaces.serve.sandbox_registry import SandboxRegistry
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.languages.config import ProcessConfig
from warmcell.policy.model import SandboxPolicy

#: A header of the front: the number of its count, and how many sandboxes the tenant has on other nodes by it.
ELSEWHERE = "x-warmcell-sandboxes-elsewhere"


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
    """Counts the sandboxes of this node and, from the last count of the front, those of other nodes."""

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


class NodeServerService(Service):
    def __init__(self, definition: Definition) -> None:
        self._rules = definition.rules
        super().__init__(definition.settings, definition.config)
        self.is_worker = True
        self.quota = ClusterQuota()
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

    async def use(self, rules: Rules) -> None:
        self._service.use(rules)

    async def drain(self) -> None:
        """Accept no new work, and end the endless streams."""
        self._service.draining.set()


class _ElsewhereCounts:
    """Records the tenant's number of sandboxes on other nodes, before another one is made here."""

    def __init__(self, app: Any, service: NodeServerService) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            connection = HTTPConnection(scope)
            counted = connection.headers.get(ELSEWHERE)
            if counted is not None and (tenant := self._service.tenant(find_token(connection))) is not None:
                self._service.quota.note_elsewhere(tenant.id, *map(int, counted.split()))
        await self._app(scope, receive, send)


async def start_server(definition: Definition) -> NodeServer:
    return await start(partial(NodeServer, definition))
