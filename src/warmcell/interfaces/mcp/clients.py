"""One sandbox per client, made at its first call and destroyed when it disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from warmcell.core.light import on_error
from warmcell.core.records import dataclass
from warmcell.interfaces.serve.requests import RESPONSE_END
from warmcell.lifetime.threads import cancel_and_wait
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.tools.definitions import MAX_TIMEOUT
from warmcell.sandbox.tools.toolset import Toolset

T = TypeVar("T")
_STDIO = "stdio"


class ClientSandbox(Protocol):
    """A client's sandbox and the limits on its calls."""

    sandbox: AsyncSandbox
    #: The longest timeout that a call may ask for, in seconds.
    max_timeout: int

    def call_slot(self) -> AbstractAsyncContextManager[object]:
        """Held during a call. May raise `SandboxError`, which is returned to the client."""

    async def end(self) -> None:
        """Destroy the sandbox."""


class PrivateSandbox:
    """A sandbox without a tenant's limits."""

    max_timeout = MAX_TIMEOUT

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self.sandbox = sandbox

    def call_slot(self) -> AbstractAsyncContextManager[object]:
        return nullcontext()

    async def end(self) -> None:
        await self.sandbox.destroy()


#: Called with the context of a client's first request.
SandboxFactory = Callable[[Any], ClientSandbox]


@dataclass(frozen=True, slots=True)
class Client:
    place: ClientSandbox
    tools: Toolset


class Clients:
    def __init__(self, make: SandboxFactory, languages: Sequence[str] | None, is_stateful: bool) -> None:
        self._make = make
        self._is_stateful = is_stateful
        self._languages = languages
        self._clients: dict[str, asyncio.Task[Client]] = {}
        #: Sessions that call `end` when they end. Clients whose first call fails may try as often as they like.
        self._ending: set[str] = set()

    async def of(self, context: Any) -> Client:
        """The client of a request. Concurrent first calls get the same one."""
        key = self._key(context)
        beginning = self._clients.get(key)
        if beginning is None:
            beginning = self._clients[key] = asyncio.create_task(self._begin(context))
            if key != _STDIO and key not in self._ending:  # the stdio client lives as long as the server
                self._ending.add(key)
                context.session._connection.exit_stack.push_async_callback(self.end, key)
        try:
            return await asyncio.shield(beginning)
        except Exception:
            if self._clients.get(key) is beginning:  # the next call tries again, and may have begun to
                del self._clients[key]
            raise

    async def end(self, key: str) -> None:
        self._ending.discard(key)
        task = self._clients.pop(key, None)
        if task is not None:
            with anyio.CancelScope(shield=True):
                (client,) = await asyncio.gather(task, return_exceptions=True)
                if isinstance(client, Client):
                    await client.place.end()

    async def end_all(self) -> None:
        await asyncio.gather(*(self.end(key) for key in list(self._clients)))

    def _key(self, context: Any) -> str:
        """Over HTTP, the session id from `initialize`. Stateless requests have none and are refused."""
        if context.request is None:
            return _STDIO
        session_id = context.session._connection.session_id
        if session_id is None:
            message = "this server keeps a sandbox per session: begin with initialize"
            versions = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": context.protocol_version}
            raise MCPError(types.UNSUPPORTED_PROTOCOL_VERSION, message, versions)
        return str(session_id)

    async def _begin(self, context: Any) -> Client:
        place = self._make(context)
        async with on_error(place.end):
            await place.sandbox.start()
            tools = place.sandbox.tools(
                languages=self._languages, stateful=self._is_stateful, max_timeout=place.max_timeout
            )
        return Client(place, tools)


async def while_awaited(context: Any, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and cancel it when its client hangs up or cancels the request.

    A client that hung up cannot get the answer, and would leave any number of calls behind. A cancelled anyio scope
    cancels repeatedly, which would interrupt the clean-up of a run: `work` is cancelled once.
    """
    end = asyncio.Event() if context.request is None else context.request.scope[RESPONSE_END]
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(end.wait())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise MCPError(types.INTERNAL_ERROR, "the client disconnected")
        return working.result()
    finally:
        with anyio.CancelScope(shield=True):
            await cancel_and_wait(working, leaving)
