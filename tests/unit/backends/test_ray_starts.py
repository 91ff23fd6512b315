"""Sockets and servers of a node that could not be started once: the next caller tries again."""

from __future__ import annotations

import asyncio
import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.backends.ray import node_service
from warmcell.backends.ray.direct_connection import NodeSocket
from warmcell.backends.ray.node_link import NodeLink
from warmcell.backends.ray.node_service import SANDBOXES, NodeService
from warmcell.core.errors import BackendUnavailable


class SilentTransport:
    async def take(self) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def close(self) -> None: ...

    def kill(self) -> None: ...


async def test_a_socket_to_a_node_is_made_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    listen, failures = NodeSocket.listen, [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    async def listen_at_last(socket: NodeSocket) -> None:
        if failures:
            raise failures.pop()
        await listen(socket)

    monkeypatch.setattr(NodeSocket, "listen", listen_at_last)
    info: Any = SimpleNamespace(id="node")
    transport: Any = SilentTransport()
    link = NodeLink(info, info, transport, lambda _: None)
    with pytest.raises(OSError, match="open files"):
        await link.socket_path()
    assert os.path.exists(await link.socket_path())
    await link.close(BackendUnavailable("closed"))


async def test_a_server_of_a_node_is_started_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    async def start_server(_: object) -> str:
        if failures:
            raise failures.pop()
        return "server"

    monkeypatch.setattr(node_service, "import_module", lambda _: SimpleNamespace(start_server=start_server))
    service = NodeService(lambda: SimpleNamespace(config=None))
    with pytest.raises(OSError, match="open files"):
        await service._find_server(SANDBOXES)
    assert await service._find_server(SANDBOXES) == "server"
