"""The sandboxes that outlive requests: the owner and the lifetime of each."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

from warmcell.core.errors import InvalidRequest, NodeLost, SandboxError, SessionBusy
from warmcell.core.light import on_error
from warmcell.interfaces.serve.quotas import TenantQuota
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.processes import AsyncProcess

_log = logging.getLogger("warmcell.serve")
#: How long `on_expiry` may take before the sandbox is removed instead.
EXPIRY_SECONDS = 60.0
#: An expiry that the event loop notices later than this waits once for so long.
LATE_SECONDS, LATE_PAUSE_SECONDS = 0.1, 1.0
#: What the metadata of one sandbox may take. Each pair counts as more than its text: lists contain all metadata.
MAX_METADATA_BYTES, _PAIR_BYTES = 64 << 10, 128
#: The largest body of a request for a sandbox; it is kept as long as the sandbox.
MAX_CREATION_BYTES = 1 << 20
Make = Callable[[], AsyncSandbox]
T = TypeVar("T")


class SandboxNotFound(SandboxError):
    """The sandbox does not exist or belongs to another tenant; a client cannot tell which."""

    code = "sandbox.destroyed"
    fault = "caller"


class SandboxLost(NodeLost):
    """The node of this sandbox was lost, and the sandbox with it: trying again does not help."""

    retryable = False
    http_status = 410

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(node, reason)
        self.hint = "create a new sandbox; it goes to another node"


class TypedState:
    """Objects that protocols keep with a service or a sandbox, one per class. Belongs to one event loop."""

    def __init__(self) -> None:
        self._objects: dict[type, object] = {}

    def find(self, kind: type[T]) -> T | None:
        return cast("T | None", self._objects.get(kind))

    def put(self, value: T) -> T:
        self._objects[type(value)] = value
        return value

    def get(self, kind: type[T], make: Callable[[], T]) -> T:
        """Return the object of this class, made by `make` the first time."""
        found = self.find(kind)
        return self.put(make()) if found is None else found


class SandboxEntry:
    """One sandbox. `created` and `expires` are Unix times; `deadline` is monotonic, so clock jumps do not matter."""

    def __init__(
        self, sandbox: AsyncSandbox, tenant: Tenant, seconds: float, metadata: Mapping[str, str], suffix: str = ""
    ) -> None:
        self.id = secrets.token_hex(16) + suffix
        self.sandbox, self.tenant, self.metadata = sandbox, tenant, dict(metadata)
        self.tenant_id = tenant.id
        self.created, self.max_lifetime = time.time(), tenant.lifetime
        self._started = time.monotonic()
        self.deadline = self._started + seconds
        #: Whether its deadline is from the clock at the start of the server, which may have been ahead.
        self._is_restored = False
        #: Counts the reloads that changed the policy; a fork is made only under the present one.
        self.policy_version = 0
        #: What a protocol keeps with the sandbox.
        self.state = TypedState()
        self.on_close: list[Callable[[], Any]] = []
        self._ending: asyncio.Task[None] | None = None
        #: Whether its guests have a GPU, which counts against a quota of the tenant; see `run_places`.
        self.has_gpu = False
        #: Called instead of removing the sandbox, the first time that it expires.
        self.on_expiry: Callable[[], Awaitable[None]] | None = None
        #: Called when its deadline has changed.
        self.on_change: Callable[[], object] = lambda: None
        #: Counts what runs in it, by kind, for the message that it was lost.
        self.count_running: Callable[[], Mapping[str, int]] = dict

    def continue_as(self, identity: str, created: float, expires: float) -> None:
        """Take the id and the times of a sandbox of the previous server."""
        self.id, self.created, self._is_restored = identity, created, True
        self._started = self._start_by_clock()
        self.deadline = min(self._started + (expires - created), self.last_deadline)

    def _start_by_clock(self) -> float:
        """When it was made, in monotonic time: not in the future, by a clock that is behind."""
        return time.monotonic() - max(0.0, time.time() - self.created)

    def read_clock_again(self) -> bool:
        """Whether a restored sandbox has time left by the present clock, because the clock was ahead at the start."""
        ahead = self._start_by_clock() - self._started if self._is_restored else 0.0
        if ahead < 1.0:  # both clocks cannot be read at once, and run a little apart
            return False
        self._started += ahead
        self.deadline += ahead
        return not self.is_expired

    @property
    def expires(self) -> float:
        return self.created + self.deadline - self._started

    @property
    def is_expired(self) -> bool:
        return time.monotonic() >= self.deadline

    @property
    def age(self) -> float:
        """Seconds since it was made; changes of the host's clock do not matter."""
        return time.monotonic() - self._started

    def has_left(self, seconds: float) -> bool:
        return self.deadline >= time.monotonic() + seconds

    @property
    def last_deadline(self) -> float:
        return self._started + self.max_lifetime

    def prolong(self, seconds: float, max_lifetime: float) -> None:
        before = self.deadline
        self.deadline = min(time.monotonic() + seconds, self._started + max_lifetime)
        with on_error(lambda: setattr(self, "deadline", before)):
            self.on_change()
        self._is_restored = False

    def start_destroy(self) -> asyncio.Task[None]:
        """Idempotent: it may be ended by its client, its expiry and a reload at once, and goes on without them."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._destroy())
        return self._ending

    async def _destroy(self) -> None:
        try:
            await self.sandbox.destroy()
        finally:
            for call in self.on_close:
                ended = call()
                if inspect.isawaitable(ended):
                    await ended


class SandboxRegistry:
    """Belongs to the server's event loop.

    An id is 128 random bits, never reused, and looked up by its hash: timing says nothing about existing ids.
    `suffix` ends every id; see `worker_suffix`.
    """

    def __init__(self, suffix: str = "", quota: TenantQuota | None = None) -> None:
        self.suffix, self.policy_version = suffix, 0
        #: Counts the sandboxes, and those that are being made.
        self._quota = quota or TenantQuota()
        self._entries: dict[bytes, SandboxEntry] = {}
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        self._expiring: set[asyncio.Task[None]] = set()
        #: Sandboxes that are being destroyed, perhaps without a caller.
        self._ending: set[asyncio.Task[None]] = set()

    def add(self, make: Make, tenant: Tenant, seconds: float, metadata: Mapping[str, str]) -> SandboxEntry:
        """Raises `HttpError` 429 if the tenant has reached its number of sandboxes."""
        with self._take_slot(tenant, metadata):
            return self._register(make(), tenant, seconds, metadata)

    async def add_async(
        self, make: Callable[[], Awaitable[AsyncSandbox]], tenant: Tenant, seconds: float, metadata: Mapping[str, str]
    ) -> SandboxEntry:
        """`add` for a sandbox that takes time to make: its slot is reserved from the start."""
        version = self.policy_version
        with self._take_slot(tenant, metadata):
            entry = self._register(await make(), tenant, seconds, metadata)
            entry.policy_version = version  # a reload meanwhile did not change its policy
            return entry

    @contextmanager
    def _take_slot(self, tenant: Tenant, metadata: Mapping[str, str]) -> Iterator[None]:
        """Take a slot for a sandbox that the block makes; it is released if that fails."""
        check_metadata(metadata)
        self._take(tenant)
        with on_error(lambda: self._quota.release(tenant.id)):
            yield

    @contextmanager
    def reserve(self, tenant: Tenant) -> Iterator[None]:
        """Hold a slot while a sandbox is made, so that concurrent requests cannot exceed the quota together."""
        self._take(tenant)
        try:
            yield
        finally:
            self._quota.release(tenant.id)

    def check_room(self, tenant: Tenant) -> None:
        """Raises `HttpError` 429 if the tenant has reached its number of sandboxes."""
        if self._quota.count(tenant.id) >= tenant.sandboxes:
            raise _quota_exceeded(tenant)

    def _take(self, tenant: Tenant) -> None:
        if not self._quota.take(tenant.id, tenant.sandboxes):
            raise _quota_exceeded(tenant)

    def _register(
        self, sandbox: AsyncSandbox, tenant: Tenant, seconds: float, metadata: Mapping[str, str]
    ) -> SandboxEntry:
        return self._keep(SandboxEntry(sandbox, tenant, min(seconds, tenant.lifetime), metadata, self.suffix))

    def _keep(self, entry: SandboxEntry) -> SandboxEntry:
        entry.policy_version = self.policy_version
        self._entries[_key(entry.id)] = entry
        self._set_timer(entry)
        return entry

    def restore(
        self,
        sandbox: AsyncSandbox,
        tenant: Tenant,
        identity: str,
        created: float,
        expires: float,
        metadata: Mapping[str, str],
    ) -> SandboxEntry:
        """Register a sandbox of the previous server under its id. It counts against the quota from now on."""
        entry = SandboxEntry(sandbox, tenant, 0.0, metadata)
        entry.continue_as(identity, created, expires)
        self._quota.add(tenant.id)
        return self._keep(entry)

    def find(self, tenant: Tenant, identity: str) -> SandboxEntry:
        entry = self.find_any(identity)
        if entry is None or entry.tenant_id != tenant.id:
            raise SandboxNotFound("sandbox not found")
        return entry

    def find_any(self, identity: str) -> SandboxEntry | None:
        """Find a sandbox of any tenant, for protocols that have a secret for each sandbox."""
        return self._entries.get(_key(identity))

    def _has(self, entry: SandboxEntry) -> bool:
        return self.find_any(entry.id) is entry

    def of(self, tenant: Tenant) -> list[SandboxEntry]:
        return [entry for entry in self._entries.values() if entry.tenant_id == tenant.id]

    def all(self) -> list[SandboxEntry]:
        return list(self._entries.values())

    def prolong(self, entry: SandboxEntry, seconds: float, tenant: Tenant) -> None:
        """Expire `seconds` from now, but never past the tenant's maximum lifetime."""
        if not self._has(entry):  # it was removed, and a timer would remove it once more
            raise SandboxNotFound("sandbox not found")
        entry.prolong(seconds, tenant.lifetime)
        self._set_timer(entry)

    async def remove(self, entry: SandboxEntry) -> None:
        key = _key(entry.id)
        if self._entries.pop(key, None) is not None:
            self._timers.pop(key).cancel()
            self._quota.release(entry.tenant_id)
        ending = entry.start_destroy()
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        await asyncio.shield(ending)

    async def aclose(self) -> None:
        before = (*self._expiring, *self._ending)
        removing = [self.remove(entry) for entry in list(self._entries.values())]
        for error in await asyncio.gather(*removing, *before, return_exceptions=True):
            if isinstance(error, Exception):
                _log.error("cannot remove a sandbox: %s", error, exc_info=error)

    def _set_timer(self, entry: SandboxEntry) -> None:
        key = _key(entry.id)
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(max(0.0, entry.deadline - time.monotonic()), self._start_expiry, entry)

    def _start_expiry(self, entry: SandboxEntry, *, has_paused: bool = False) -> None:
        loop, key = asyncio.get_running_loop(), _key(entry.id)
        if not has_paused and loop.time() - self._timers[key].when() > LATE_SECONDS:
            # The event loop stood still: requests to prolong it, which arrived in time, are handled first.
            self._timers[key] = loop.call_later(LATE_PAUSE_SECONDS, partial(self._start_expiry, entry, has_paused=True))
            return

        async def expire() -> None:
            if not entry.has_left(LATE_SECONDS):  # else it was prolonged in the meantime, and has a new timer
                await self._expire(entry)

        task = asyncio.ensure_future(expire())
        self._expiring.add(task)
        task.add_done_callback(self._expiring.discard)

    async def _expire(self, entry: SandboxEntry) -> None:
        if self._has(entry) and entry.read_clock_again():
            self._set_timer(entry)
            return
        if entry.on_expiry is None or time.monotonic() >= entry.last_deadline:
            await self.remove(entry)
            return
        try:
            async with asyncio.timeout(EXPIRY_SECONDS):
                await entry.on_expiry()
        except Exception as error:
            _log.error("cannot pause the expired sandbox %s, removing it: %s", entry.id, error)
            await self.remove(entry)
            return
        if not self._has(entry):  # it was removed meanwhile
            return
        entry.deadline = entry.last_deadline
        self._set_timer(entry)
        try:
            entry.on_change()
        except SandboxError as error:
            _log.error("cannot save the expired sandbox %s: %s", entry.id, error)


def _quota_exceeded(tenant: Tenant) -> HttpError:
    return HttpError(
        429,
        f"sandbox quota exceeded: this token already has {tenant.sandboxes} sandboxes; remove one, or raise the"
        " quota with `warmcell serve --sandboxes N` (with --tokens: `warmcell token new NAME --sandboxes N`)",
        headers={"Retry-After": "5"},
    )


def check_metadata(metadata: Mapping[str, str]) -> None:
    size = sum(len(key) + len(value) + _PAIR_BYTES for key, value in metadata.items())
    if size > MAX_METADATA_BYTES:
        reason = f"takes more than {MAX_METADATA_BYTES >> 10} KiB, counting {_PAIR_BYTES} bytes more for each pair"
        raise InvalidRequest(reason, field="metadata", hint="keep large data in files of the sandbox")


def _key(identity: str) -> bytes:
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest()


#: A response header: this worker does not know the object, another one might.
MAYBE_ELSEWHERE = "x-warmcell-maybe-elsewhere"
#: A request header: the front only asks whether this worker knows the object; answered with 204.
PROBE_ONLY = "x-warmcell-probe-only"
#: Behind a front the last digits of an id are the number of the worker that has the sandbox.
_SUFFIX_DIGITS = 2


def worker_suffix(number: int) -> str:
    return f"{number:0{_SUFFIX_DIGITS}x}"


def worker_of_id(identity: str) -> int | None:
    """Inverse of `worker_suffix`; None if the text does not end in hexadecimal digits."""
    digits = identity[-_SUFFIX_DIGITS:]
    return int(digits, 16) if digits and set(digits) <= set("0123456789abcdefABCDEF") else None


class PendingWrites(dict[int, "asyncio.Future[None]"]):
    """The unfinished write to each process, by pid. Kept in the state of the sandbox's entry."""


async def write_to_process(entry: SandboxEntry, process: AsyncProcess, data: bytes, *, wait: bool = False) -> None:
    """Write, and return when the process has read it all.

    While an earlier write is unread, a second one waits (`wait`) or raises `SessionBusy`: clients that reconnect cannot
    pile up data in the server's memory.
    """
    pending = entry.state.get(PendingWrites, PendingWrites)
    while process.pid in pending:
        if not wait:
            raise SessionBusy("the process has not yet read the previous write")
        await asyncio.wait([pending[process.pid]])
    writing = pending[process.pid] = asyncio.ensure_future(process.write(data))

    def finish(done: asyncio.Future[None]) -> None:
        del pending[process.pid]
        done.cancelled() or done.exception()  # retrieved here: the client may have gone

    writing.add_done_callback(finish)
    await asyncio.shield(writing)
