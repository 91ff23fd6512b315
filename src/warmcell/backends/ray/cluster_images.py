"""ClusterImages: brings images to the nodes that need them, once each, by digest. On the portal's loop.

A reference means one digest for all nodes of a backend. A node that lacks the image gets its blobs from this host or
from another node, in messages of the link, which Ray's object store carries; only an image that none of them has is
pulled from its registry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from warmcell.backends.ray.stored_images import CHUNK, StoredImages
from warmcell.core.errors import SandboxError
from warmcell.core.records import replace
from warmcell.images.model import store_of
from warmcell.images.references import is_digest, parse_reference
from warmcell.lifetime.threads import in_thread

if TYPE_CHECKING:
    from warmcell.backends.ray.node_link import NodeLink
    from warmcell.images import Image

#: Calls a method of the `StoredImages` of some host.
Ask = Callable[..., Awaitable[Any]]


class ClusterImages:
    def __init__(self, links: Callable[[], Iterable[NodeLink]]) -> None:
        self._links = links
        #: Name and digest of references that this host does not have.
        self._resolved: dict[str, tuple[str, str]] = {}
        #: By reference: held while its digest is looked up, so that nodes cannot get different ones.
        self._locks: dict[str, asyncio.Lock] = {}

    async def provide(self, link: NodeLink, image: str | Image) -> str:
        """Returns when the node has the image; the reference with which it finds it there, by digest."""
        local: Ask = partial(_ask_local, StoredImages(None if isinstance(image, str) else store_of(image)))
        found: tuple[str, str]
        if isinstance(image, str):
            found = await local("find", image) or await self._resolve(link, image)
        else:
            found = image.name, image.digest
        name, digest = found
        wanted = _name_with_digest(name, digest)
        if digest not in link.images:
            bringing = link.images[digest] = asyncio.ensure_future(self._bring(link, local, wanted, digest))
            bringing.add_done_callback(partial(_forget, link, digest))
        await asyncio.shield(link.images[digest])  # others may wait for it, too
        return wanted

    async def _resolve(self, link: NodeLink, reference: str) -> tuple[str, str]:
        """The image that a node has under that name, else the registry's."""
        async with self._locks.setdefault(reference, asyncio.Lock()):
            if reference not in self._resolved:
                self._resolved[reference] = await self._find_on_nodes(link, reference) or await link.call(
                    "ask_images", "pull", reference
                )
            return self._resolved[reference]

    async def _find_on_nodes(self, first: NodeLink, reference: str) -> tuple[str, str] | None:
        for link in (first, *self._others(first)):
            with suppress(SandboxError):  # a node that was lost, or whose store does not work, has nothing to offer
                found: tuple[str, str] | None = await link.call("ask_images", "find", reference)
                if found is not None:
                    return found
        return None

    async def _bring(self, link: NodeLink, local: Ask, name: str, digest: str) -> None:
        target = partial(link.call, "ask_images")
        if await target("find", digest) is not None:
            return
        failure: SandboxError | None = None
        sources: list[Ask] = [local, *(partial(other.call, "ask_images") for other in self._others(link))]
        for source in sources:
            try:
                if await source("find", digest) is not None:
                    await _copy(source, target, name, digest)
                    return
            except SandboxError as error:
                if link.lost is not None:
                    raise
                failure = error
        if failure is not None:
            raise failure
        await target("pull", name)

    def _others(self, link: NodeLink) -> list[NodeLink]:
        return [other for other in self._links() if other is not link]


async def _copy(source: Ask, target: Ask, name: str, digest: str) -> None:
    """One chunk is in memory at a time. The target verifies each blob, and each layer once more."""
    try:
        for blob, size in await target("begin", digest, name, await source("list_blobs", digest)):
            for offset in range(0, max(size, 1), CHUNK):
                await target("write", digest, blob, size, await source("read_blob", blob, offset))
        await target("finish", digest)
    except BaseException:
        with suppress(SandboxError):  # the target is gone
            await target("abandon", digest)
        raise


async def _ask_local(images: StoredImages, method: str, *values: Any) -> Any:
    return await in_thread(lambda: getattr(images, method)(*values))


def _forget(link: NodeLink, digest: str, bringing: asyncio.Future[None]) -> None:
    del link.images[digest]
    if not bringing.cancelled():
        bringing.exception()  # retrieved, so that asyncio does not log it if all waiters were cancelled


def _name_with_digest(name: str, digest: str) -> str:
    """The same on each node, and none that somebody else has given to another image there."""
    return f"image@{digest}" if is_digest(name) else replace(parse_reference(name), digest=digest).name
