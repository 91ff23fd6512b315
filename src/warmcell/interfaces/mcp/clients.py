"""Whose sandbox a request means: one for each client, made at its first call, destroyed when it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from warmcell.core.records import dataclass
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.tools.definitions import MAX_TIMEOUT
from warmcell.sandbox.tools.toolset import Toolset

T = TypeVar("T")
_ONLY_ONE = "stdio"


class Place(Protocol):
    """Where a client's sandbox lives, and by what right its calls are made."""

    sandbox: AsyncSandbox
    #: The most seconds that a call may ask for.
    max_timeout: int

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Held for as long as a call takes; may raise a `SandboxError`, which the client is told."""

    async def end(self) -> None:
        """Destroys the sandbox."""


class OwnPlace:
    """A sandbox that nobody else has a say in."""

    max_timeout = MAX_TIMEOUT

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self.sandbox = sandbox

    def turn(self) -> AbstractAsyncContextManager[object]:
        return nullcontext()

    async def end(self) -> None:
        await self.sandbox.destroy()


#: From the context of a client's first request.
MakePlace = Callable[[Any], Place]


@dataclass(frozen=True, slots=True)
class Client:
    """One client's sandbox and the tools over it."""

    place: Place
    tools: Toolset

    @property
    def sandbox(self) -> AsyncSandbox:
        return self.place.sandbox


class Clients:
    """All clients of one server."""

    def __init__(self, make: MakePlace, languages: Sequence[str] | None, is_stateful: bool) -> None:
        self._make = make
        self._is_stateful = is_stateful
        self._languages = languages
        self._begun: dict[str, asyncio.Task[Client]] = {}

    async def of(self, context: Any) -> Client:
        """The client's own. Two calls that come at once get the same."""
        key = self._key(context)
        if key not in self._begun:
            self._begun[key] = asyncio.create_task(self._begin(context))
            if key != _ONLY_ONE:  # over stdio it lives as long as the server
                context.session._connection.exit_stack.push_async_callback(self.end, key)
        try:
            return await asyncio.shield(self._begun[key])
        except Exception:
            self._begun.pop(key, None)  # the next call may find room
            raise

    async def end(self, key: str) -> None:
        begun = self._begun.pop(key, None)
        if begun is not None:
            with anyio.CancelScope(shield=True):
                (client,) = await asyncio.gather(begun, return_exceptions=True)
                if isinstance(client, Client):
                    await client.place.end()

    async def end_all(self) -> None:
        await asyncio.gather(*(self.end(key) for key in list(self._begun)))

    def _key(self, context: Any) -> str:
        """Over HTTP the session that the client began with `initialize`: requests that carry no state have none."""
        if context.request is None:
            return _ONLY_ONE
        session_id = context.session._connection.session_id
        if session_id is None:
            said = "this server keeps a sandbox for each client: begin with initialize"
            versions = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": context.protocol_version}
            raise MCPError(types.UNSUPPORTED_PROTOCOL_VERSION, said, versions)
        return str(session_id)

    async def _begin(self, context: Any) -> Client:
        place = self._make(context)
        try:
            await place.sandbox.start()
            tools = place.sandbox.tools(
                languages=self._languages, stateful=self._is_stateful, max_timeout=place.max_timeout
            )
        except BaseException:
            await place.end()
            raise
        return Client(place, tools)


async def to_the_end(work: Awaitable[T]) -> T:
    """Cancelled, `work` is cancelled once and waited for. A cancelled scope of anyio cancels again and again whatever
    its task waits for, and would break into the clean-up of a run.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        raise
