"""NodeActor: what Ray starts on each node, around a `NodeService`."""

from __future__ import annotations

import pickle

from warmcell.backends.ray.direct_connection import DirectListener
from warmcell.backends.ray.node_service import NodeService
from warmcell.core.errors import SandboxError


class NodeActor:
    """An asynchronous actor: its methods overlap, on one event loop."""

    def __init__(self, make_backend: bytes) -> None:
        self._make_backend = make_backend
        self._service: NodeService | None = None
        self._listener: DirectListener | None = None

    async def start(self) -> bytes:
        """The node's facts, or the error that keeps it from running anything."""
        try:
            self._service = NodeService(pickle.loads(self._make_backend))  # noqa: S301  # of our own program
            return pickle.dumps(await self._service.start())
        except SandboxError as error:
            return pickle.dumps(error.with_traceback(None))

    async def listen(self, is_local: bool) -> bytes:
        """Offers a direct connection to programs of this host, or to those of other hosts."""
        import ray

        assert self._service is not None
        self._listener = self._listener or DirectListener(self._service.serve)
        return pickle.dumps(await self._listener.listen(None if is_local else ray.util.get_node_ip_address()))

    async def submit(self, payload: bytes) -> None:
        assert self._service is not None
        self._service.submit(payload)

    async def take(self) -> bytes:
        assert self._service is not None
        return await self._service.take()

    async def check(self) -> None:
        """Returns if this process is not about to end."""

    async def close(self) -> None:
        """The connection stays until Ray ends the process: its end would mean that the node was lost."""
        if self._listener is not None:
            self._listener.stop()
        if self._service is not None:
            await self._service.close()
