"""Which images requests may name, and the backends that run in them.

An image is the guest's root and nothing else: limits, network, processes and allowed paths stay those of the policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import ImageNotFound, InvalidRequest
from warmcell.core.records import dataclass, replace
from warmcell.images import Image, ImageStore
from warmcell.images.references import is_digest, parse_reference
from warmcell.interfaces.serve.gpu_access import Gpus
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.threads import in_thread
from warmcell.policy.model import SandboxPolicy

#: The registry part of names that tenants' templates have in the store. No request reaches them by name or digest.
TEMPLATE_HOST = "templates.warmcell.invalid"
#: Backends that are kept; each has an image of its own, and its warm cells.
MAX_BACKENDS = 16
_HINT = "the operator adds images with `warmcell image pull` or `warmcell image import`"


@dataclass(frozen=True, slots=True)
class ImageChoice:
    """The image that a request runs in, and the user in it."""

    image: Image
    user: str | None = None


class ImageAccess:
    """Belongs to the server's event loop."""

    def __init__(self, config: ProcessConfig, path: str | None) -> None:
        self._config = config
        self.store = ImageStore(path)
        self._lock = asyncio.Lock()
        #: The most recently used last.
        self._backends: dict[tuple[str, str | None, Gpus | None], ProcessBackend] = {}

    async def find(self, name: str | None, user: str | None = None) -> ImageChoice | None:
        """The image of a request. Raises `ImageNotFound` for one that is not in the server's store."""
        if name is None:
            if user is not None:
                raise InvalidRequest("needs an image", field="user", hint="name an image, or leave it out")
            return None
        return ImageChoice(await in_thread(partial(self._find, name)), user)

    def _find(self, name: str) -> Image:
        reference = None if is_digest(name) else parse_reference(name)
        digest = name if reference is None else reference.digest
        is_known = _is_public(self.store.list(), digest) if digest else reference.registry != TEMPLATE_HOST  # type: ignore[union-attr]
        try:
            if is_known:
                return self.store.get(name)
        except ImageNotFound:
            pass  # said below, with the remedy on a server
        raise ImageNotFound(name, place="the server's store", hint=_HINT)

    async def backend(
        self, policy: SandboxPolicy, gpus: Gpus | None, choice: ImageChoice
    ) -> tuple[ProcessBackend, list[ProcessBackend]]:
        """The backend for runs in this image, and those that it displaced, for the caller to close."""
        key = choice.image.digest, choice.user, gpus
        async with self._lock:
            found = self._backends.pop(key, None)
            if found is None:
                make = partial(self._make, replace(policy, gpus=gpus), choice)
                found = await in_thread(make, discard=lambda made: made.close())
            self._backends[key] = found
            displaced = list(self._backends)[:-MAX_BACKENDS]
            return found, [self._backends.pop(old) for old in displaced]

    def _make(self, policy: SandboxPolicy, choice: ImageChoice) -> ProcessBackend:
        config = replace(self._config, pool_min=0)
        return ProcessBackend(config, policy=policy, image=choice.image, user=choice.user)

    def take_backends(self) -> list[ProcessBackend]:
        """All of them, for the caller to close."""
        backends, self._backends = list(self._backends.values()), {}
        return backends


def _is_public(images: Iterable[Image], digest: str) -> bool:
    """Whether a name that is not a template's stands for this digest."""
    named = (image.name for image in images if image.digest == digest)
    return any(parse_reference(name).registry != TEMPLATE_HOST for name in named)
