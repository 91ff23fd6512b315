"""NodeActor: what Ray starts on each node, around a `NodeService`."""

from __future__ import annotations

import pickle

from warmcell.backends.ray.node_service import NodeService
from warmcell.core.errors import SandboxError


class NodeActor:
    """An asynchronous actor: its methods overlap, on one event loop."""

    def __init__(self, make_backend: bytes) -> None:
        self._make_backend = make_backend
        self._service: NodeService | None = None

    async def start(self) -> bytes:
        """The node's facts, or the error that keeps it from running anything."""
        try:
            self._service = NodeService(pickle.loads(self._make_backend))  # noqa: S301  # of our own program
            return pickle.dumps(await self._service.start())
        except SandboxError as error:
            return pickle.dumps(error.with_traceback(None))

    async def submit(self, payload: bytes) -> None:
        assert self._service is not None
        self._service.submit(payload)

    async def ask(self, payload: bytes) -> bytes:
        assert self._service is not None
        return await self._service.ask(payload)

    async def take(self) -> bytes:
        assert self._service is not None
        return await self._service.take()

    async def close(self) -> None:
        if self._service is not None:
            await self._service.close()
