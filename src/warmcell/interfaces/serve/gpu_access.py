"""Which requests get a GPU: those of tokens with the scope `gpu`, under the policy, within the token's quota."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.records import replace
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.languages.config import ProcessConfig
from warmcell.policy.gpu import narrow_gpus
from warmcell.policy.model import SandboxPolicy

#: Kept for sets of devices, the latest used last: requests may name any set, also of devices that do not exist.
MAX_BACKENDS = 16
#: As in a policy: "all", or device numbers.
Gpus = str | tuple[int, ...]


def check_access(tenant: Tenant, asked: object, policy: SandboxPolicy | None) -> Gpus | None:
    """The devices that a request names. Raises `HttpError` 403 without the scope, `PolicyViolation` by the policy."""
    if asked is None:
        return None
    if "gpu" not in tenant.scopes:
        raise HttpError(403, "the token does not have the scope 'gpu'")
    return narrow_gpus(asked, None if policy is None else policy.gpus)


class GpuAccess:
    """Belongs to the server's event loop."""

    def __init__(self, config: ProcessConfig) -> None:
        self._config = config
        self._backends: dict[Gpus, ProcessBackend] = {}
        #: By tenant: runs and sandboxes with a GPU.
        self._in_use: Counter[str] = Counter()

    def backend(self, policy: SandboxPolicy, gpus: Gpus) -> tuple[ProcessBackend, list[ProcessBackend]]:
        """The backend for runs with these devices, and those that it displaced, for the caller to close."""
        found = self._backends.pop(gpus, None)
        if found is None:
            found = ProcessBackend.with_sandbox(self._config, policy=replace(policy, gpus=gpus))
        self._backends[gpus] = found
        return found, [self._backends.pop(old) for old in list(self._backends)[:-MAX_BACKENDS]]

    def take_backends(self) -> list[ProcessBackend]:
        """All of them, for the caller to close."""
        backends, self._backends = list(self._backends.values()), {}
        return backends

    @asynccontextmanager
    async def count_run(self, tenant: Tenant, gpus: Gpus | None) -> AsyncIterator[None]:
        if gpus is None:
            yield
            return
        self.enter(tenant)
        try:
            yield
        finally:
            self.leave(tenant)

    @contextmanager
    def count_sandbox(self, tenant: Tenant, has_gpu: bool) -> Iterator[Callable[[SandboxEntry], None]]:
        """While a sandbox is made. Calling what it yields keeps the sandbox counted until it is closed."""
        with ExitStack() as undo:
            if has_gpu:
                self.enter(tenant)
                undo.callback(self.leave, tenant)

            def keep(entry: SandboxEntry) -> None:
                entry.has_gpu = has_gpu
                entry.on_close.append(undo.pop_all().close)

            yield keep

    def enter(self, tenant: Tenant) -> None:
        """Raises `HttpError` 429 if the tenant has as many as its quota allows."""
        if self._in_use[tenant.id] >= tenant.gpu_runs:
            raise HttpError(429, f"this token already has {tenant.gpu_runs} runs or sandboxes with a GPU")
        self._in_use[tenant.id] += 1

    def leave(self, tenant: Tenant) -> None:
        self._in_use[tenant.id] -= 1
        if not self._in_use[tenant.id]:
            del self._in_use[tenant.id]
