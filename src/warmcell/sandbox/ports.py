"""`sandbox.expose`: a port of the guest on the loopback of this host, and nowhere else."""

from __future__ import annotations

import asyncio
from typing import Self

from warmcell.core.errors import ExecutionFailed
from warmcell.core.light import Closing, on_error
from warmcell.core.request_checks import check_whole
from warmcell.sandbox.interface import PortDriver
from warmcell.sandbox.signatures import blocking
from warmcell.sessions.ports import LOOPBACK

#: How often `expose(wait=...)` looks whether a program listens.
_LOOK_SECONDS = 0.05


def check_port(field: str, value: object, smallest: int) -> int:
    return check_whole(field, value, smallest, 65_535)


class AsyncExposedPort:
    """`url` leads to the guest's port while this is open. It is closed with the sandbox at the latest."""

    host = LOOPBACK

    def __init__(self, driver: PortDriver, guest_port: int) -> None:
        self._driver = driver
        self.guest_port = guest_port
        #: On this host.
        self.port = driver.port

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def _wait_for_listener(self, seconds: float) -> None:
        """Closes the port if no program listens in time."""
        async with on_error(self.aclose):
            try:
                async with asyncio.timeout(seconds):
                    while not await self._driver.is_answered():
                        await asyncio.sleep(_LOOK_SECONDS)
            except TimeoutError:
                reason = f"nothing listens on port {self.guest_port} in the sandbox after {seconds:g} s"
                hint = "does the program run (sandbox.processes()), and listen on 127.0.0.1 or 0.0.0.0?"
                failed = ExecutionFailed(reason, hint=hint)
                failed.fault = "guest"
                raise failed from None

    async def aclose(self) -> None:
        """Ends its connections. May be called twice."""
        await self._driver.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<ExposedPort {self.url} -> {self.guest_port}>"


class ExposedPort(Closing):
    """`AsyncExposedPort` for blocking code."""

    host = LOOPBACK

    def __init__(self, port: AsyncExposedPort) -> None:
        self._async = port
        self.guest_port, self.port, self.url = port.guest_port, port.port, port.url

    close = blocking(AsyncExposedPort.aclose)

    def __repr__(self) -> str:
        return repr(self._async)
