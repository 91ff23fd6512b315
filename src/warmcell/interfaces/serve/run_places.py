"""The GPUs and the image that a request may name, and the backends that run with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import ImageNotFound, InvalidRequest
from warmcell.core.records import dataclass, replace
from warmcell.images import Image, ImageStore
from warmcell.images.references import is_digest, parse_reference
from warmcell.interfaces.serve.quotas import TenantQuota
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.threads import in_thread
from warmcell.policy.gpu import narrow_gpus
from warmcell.policy.model import SandboxPolicy

#: How many backends of each kind are kept, with their warm cells: requests may name any set of devices, or any image.
MAX_BACKENDS = 16
#: The registry part of names that tenants' templates have in the store. No request reaches them by name or digest.
TEMPLATE_HOST = "templates.warmcell.invalid"
_HINT = "the operator adds images with `warmcell image pull` or `warmcell image import`"
#: As in a policy: "all", or device numbers.
Gpus = str | tuple[int, ...]


def check_access(tenant: Tenant, asked: object, policy: SandboxPolicy | None) -> Gpus | None:
    """The devices that a request names. Raises `HttpError` 403 without the scope, `PolicyViolation` if denied."""
    if asked is None:
        return None
    if "gpu" not in tenant.scopes:
        raise HttpError(403, "the token does not have the scope 'gpu'")
    return narrow_gpus(asked, None if policy is None else policy.gpus)


class _Backends:
    """A cache of backends, the most recently used last. Belongs to the server's event loop."""

    def __init__(self, config: ProcessConfig) -> None:
        self._config = config
        self._backends: dict[object, ProcessBackend] = {}
        #: How often all were taken, because the policy changed.
        self._takings = 0

    def _keep(self, key: object, backend: ProcessBackend) -> list[ProcessBackend]:
        """Add a backend; return those that it displaced, for the caller to close."""
        self._backends[key] = backend
        return [self._backends.pop(old) for old in list(self._backends)[:-MAX_BACKENDS]]

    def take_backends(self) -> list[ProcessBackend]:
        """Remove all backends, for the caller to close."""
        self._takings += 1
        backends, self._backends = list(self._backends.values()), {}
        return backends


class GpuAccess(_Backends):
    """GPUs for requests of tokens with the scope `gpu`, under the policy, within the token's quota."""

    def __init__(self, config: ProcessConfig, in_use: TenantQuota | None = None) -> None:
        super().__init__(config)
        #: Runs and sandboxes with a GPU.
        self._in_use = in_use or TenantQuota()

    def backend(self, policy: SandboxPolicy, gpus: Gpus) -> tuple[ProcessBackend, list[ProcessBackend]]:
        """The backend for runs with these devices, and those that it displaced, for the caller to close.

        Raises `PolicyViolation` if the policy does not allow them: it may have changed while the run waited.
        """
        gpus = narrow_gpus(gpus, policy.gpus) or gpus
        found = self._backends.pop(gpus, None)
        if found is None:
            found = ProcessBackend.with_sandbox(self._config, policy=replace(policy, gpus=gpus))
        return found, self._keep(gpus, found)

    @contextmanager
    def count_use(self, tenant: Tenant, has_gpu: bool) -> Iterator[Callable[[SandboxEntry], None]]:
        """Count a use while a run goes on or a sandbox is made. Calling what it yields counts until the sandbox closes.

        Raises `HttpError` 429 if the tenant has as many as its quota allows.
        """
        with ExitStack() as undo:
            if has_gpu:
                if not self._in_use.take(tenant.id, tenant.gpu_runs):
                    raise HttpError(429, f"this token already has {tenant.gpu_runs} runs or sandboxes with a GPU")
                undo.callback(self._in_use.release, tenant.id)

            def keep(entry: SandboxEntry) -> None:
                entry.has_gpu = has_gpu
                entry.on_close.append(undo.pop_all().close)

            yield keep

    def count_restored(self, tenant: Tenant, entry: SandboxEntry) -> None:
        """Count a sandbox of the previous server until it closes. It exists already, whatever the quota."""
        entry.has_gpu = True
        self._in_use.add(tenant.id)
        entry.on_close.append(partial(self._in_use.release, tenant.id))


@dataclass(frozen=True, slots=True)
class ImageChoice:
    """The image that a request runs in, and the user in it."""

    image: Image
    user: str | None = None


class ImageAccess(_Backends):
    """Which images requests may name, and the backends that run in them.

    An image is the guest's root and nothing else: limits, network, processes and allowed paths stay those of the
    policy.
    """

    def __init__(self, config: ProcessConfig, path: str | None) -> None:
        super().__init__(config)
        self.store = ImageStore(path)
        self._lock = asyncio.Lock()

    async def find(self, name: str | None, user: str | None = None) -> ImageChoice | None:
        """Find the image of a request. Raises `ImageNotFound` if it is not in the server's store."""
        if name is None:
            if user is not None:
                raise InvalidRequest("needs an image", field="user", hint="name an image, or leave it out")
            return None
        return ImageChoice(await in_thread(partial(self._find, name)), user)

    def _find(self, name: str) -> Image:
        digest = name if is_digest(name) else parse_reference(name).digest
        is_known = _is_public(self.store.names_of(digest) if digest else [name])
        try:
            if is_known:
                return self.store.get(name)
        except ImageNotFound:
            pass  # reported below, with the remedy on a server
        raise ImageNotFound(name, place="the server's store", hint=_HINT)

    async def backend(
        self, policy: SandboxPolicy, gpus: Gpus | None, choice: ImageChoice
    ) -> tuple[ProcessBackend, list[ProcessBackend]]:
        """The backend for runs in this image, and those that it displaced, for the caller to close.

        Raises `PolicyViolation` as `GpuAccess.backend` does.
        """
        gpus = narrow_gpus(gpus, policy.gpus)
        key, takings = (choice.image.digest, choice.user, gpus), self._takings
        async with self._lock:
            found = self._backends.pop(key, None)
            if found is None:
                config, policy = replace(self._config, pool_min=0), replace(policy, gpus=gpus)
                make = partial(ProcessBackend, config, policy=policy, image=choice.image, user=choice.user)
                found = await in_thread(make, discard=lambda made: made.close())
            if takings != self._takings:  # it may have the former policy: for this run only
                return found, [found]
            return found, self._keep(key, found)


def _is_public(names: Iterable[str]) -> bool:
    """Whether one of the names is not a template's."""
    return any(parse_reference(name).registry != TEMPLATE_HOST for name in names)
