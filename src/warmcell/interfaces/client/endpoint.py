"""SandboxEndpoint: the routes of one sandbox on a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from warmcell.core.errors import SandboxDestroyed
from warmcell.interfaces.client.connection import Connection


class SandboxEndpoint:
    """Shared by all drivers of one sandbox."""

    def __init__(self, connection: Connection, sandbox_id: str) -> None:
        self.connection = connection
        self.path = f"/v1/sandboxes/{sandbox_id}"
        self.is_closed = False

    async def request(self, method: str, route: str, **more: Any) -> Any:
        self.check_open()
        return await self.connection.request(method, f"{self.path}/{route}", **more)

    def events(
        self, method: str, route: str, **more: Any
    ) -> AbstractAsyncContextManager[AsyncIterator[tuple[str, Any, str]]]:
        self.check_open()
        return self.connection.events(method, f"{self.path}/{route}", **more)

    async def open(self) -> None:
        """Returns when there is a sandbox."""
        self.check_open()

    def check_open(self) -> None:
        self.connection.check_open()
        if self.is_closed:
            raise SandboxDestroyed
