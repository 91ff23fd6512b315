"""The sandboxes that stay between requests: whose each is, and until when."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.exchange import Refused
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.sandbox.asynchronous import AsyncSandbox

Make = Callable[[], AsyncSandbox]


class SandboxNotFound(SandboxError):
    """There is no such sandbox, or it is another tenant's: nobody can tell the two apart."""

    code = "sandbox.destroyed"
    fault = "caller"


class Held:
    """One sandbox. `expires` is on the clock of the wall, in seconds."""

    def __init__(
        self, sandbox: AsyncSandbox, tenant: Tenant, seconds: float, metadata: Mapping[str, str], mark: str = ""
    ) -> None:
        self.id = secrets.token_hex(16) + mark
        self.sandbox, self.tenant, self.metadata = sandbox, tenant, dict(metadata)
        self.tenant_id = tenant.id
        self.created, self.longest = time.time(), tenant.lifetime
        self.expires = self.created + seconds
        #: What a protocol keeps with it.
        self.extras: dict[str, Any] = {}
        self.on_close: list[Callable[[], Any]] = []
        #: In place of its end, the first time that its time is over.
        self.on_expiry: Callable[[], Awaitable[None]] | None = None

    async def destroy(self) -> None:
        try:
            await self.sandbox.destroy()
        finally:
            for call in self.on_close:
                ended = call()
                if inspect.isawaitable(ended):
                    await ended


class HeldSandboxes:
    """Belongs to the server's event loop. An id is 128 random bits, and is looked up by its hash: the time that it
    takes says nothing about the ids that there are. None is ever used again. All of them end with `mark`.
    """

    def __init__(self, mark: str = "") -> None:
        self._mark = mark
        self._held: dict[bytes, Held] = {}
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()
        #: By tenant: places of those that are being made.
        self._coming: Counter[str] = Counter()

    def add(self, make: Make, tenant: Tenant, seconds: float, metadata: Mapping[str, str]) -> Held:
        """`Refused` with 429 where the tenant has as many as it may."""
        self.check_room(tenant)
        return self._hold(make(), tenant, seconds, metadata)

    async def add_slowly(
        self, make: Callable[[], Awaitable[AsyncSandbox]], tenant: Tenant, seconds: float, metadata: Mapping[str, str]
    ) -> Held:
        """The same for one that takes its time: its place is taken from the start."""
        with self.place(tenant):
            made = await make()
        return self._hold(made, tenant, seconds, metadata)

    @contextmanager
    def place(self, tenant: Tenant) -> Iterator[None]:
        """For what is made while it is held, so that many who come at once are not all let in."""
        self.check_room(tenant)
        self._coming[tenant.id] += 1
        try:
            yield
        finally:
            self._coming[tenant.id] -= 1

    def check_room(self, tenant: Tenant) -> None:
        """`Refused` with 429 where there is none: for who has much to do before the sandbox is there."""
        taken = sum(held.tenant_id == tenant.id for held in self._held.values()) + self._coming[tenant.id]
        if taken >= tenant.sandboxes:
            raise Refused(429, f"you have {tenant.sandboxes} sandboxes already", headers={"Retry-After": "5"})

    def _hold(self, sandbox: AsyncSandbox, tenant: Tenant, seconds: float, metadata: Mapping[str, str]) -> Held:
        held = Held(sandbox, tenant, min(seconds, tenant.lifetime), metadata, self._mark)
        self._held[_key(held.id)] = held
        self._set_timer(held)
        return held

    def find(self, tenant: Tenant, identity: str) -> Held:
        held = self.find_any(identity)
        if held is None or held.tenant_id != tenant.id:
            raise SandboxNotFound("there is no such sandbox")
        return held

    def find_any(self, identity: str) -> Held | None:
        """For a protocol that has a secret of its own for each sandbox."""
        return self._held.get(_key(identity))

    def of(self, tenant: Tenant) -> list[Held]:
        return [held for held in self._held.values() if held.tenant_id == tenant.id]

    def all(self) -> list[Held]:
        return list(self._held.values())

    def prolong(self, held: Held, seconds: float, tenant: Tenant) -> None:
        """Counted from now; never past the longest life that the tenant's sandboxes have."""
        held.expires = min(time.time() + seconds, held.created + tenant.lifetime)
        self._set_timer(held)

    async def remove(self, held: Held) -> None:
        key = _key(held.id)
        if self._held.pop(key, None) is not None:
            self._timers.pop(key).cancel()
        await held.destroy()

    async def aclose(self) -> None:
        await asyncio.gather(*(self.remove(held) for held in list(self._held.values())), *self._ending)

    def _set_timer(self, held: Held) -> None:
        key = _key(held.id)
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(max(0.0, held.expires - time.time()), self._expire, held)

    def _expire(self, held: Held) -> None:
        task = asyncio.ensure_future(self._expired(held))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _expired(self, held: Held) -> None:
        if held.on_expiry is None or time.time() >= held.created + held.longest:
            await self.remove(held)
            return
        await held.on_expiry()
        held.expires = held.created + held.longest
        self._set_timer(held)


def _key(identity: str) -> bytes:
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest()


#: A header of answers about what nobody here knows, and another worker might.
MAYBE_ELSEWHERE = "x-warmcell-maybe-elsewhere"
#: Of a request that wants to know just that; answered by a 204.
ASKS_ONLY = "x-warmcell-asks-only"
#: Behind a front the last digits of an id say which worker has the sandbox.
_MARK_DIGITS = 2


def worker_mark(number: int) -> str:
    return f"{number:0{_MARK_DIGITS}x}"


def marked_worker(identity: str) -> int | None:
    """What `worker_mark` put there; None for what is no id of ours."""
    try:
        return int(identity[-_MARK_DIGITS:], 16)
    except ValueError:
        return None
