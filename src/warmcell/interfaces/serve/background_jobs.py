"""Work that continues without its client: its events are kept, and clients read them as often as they connect."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any
from weakref import WeakKeyDictionary

from starlette.requests import Request

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.types import MIB
from warmcell.interfaces.serve.event_streams import KEEPALIVE, Emit, event_chunks, format_event, with_keepalives
from warmcell.interfaces.serve.requests import ENDED_BY_OPERATOR
from warmcell.interfaces.serve.responses import LONG_CHUNK, HttpError, error_to_dict, parse_whole_number
from warmcell.interfaces.serve.v1.models import query
from warmcell.lifetime.threads import cancel_and_wait

#: Bytes kept of one job, and of all jobs of a tenant. Older events are dropped; readers get their number.
MAX_LOG_BYTES, MAX_KEPT_BYTES = 4 * MIB, 64 * MIB
#: Dropping goes down to this, so that not every further event looks at all jobs.
_KEPT_SHARE = 0.75
_log = logging.getLogger("warmcell.serve")
FROM = query("from", {"type": "integer", "minimum": 0, "maximum": 10**15})
Work = Callable[[Emit], Awaitable[object]]


class KeptEvents:
    """Bounds what the jobs of a tenant keep: those that have been silent longest lose their events first."""

    def __init__(self, limit: int = MAX_KEPT_BYTES) -> None:
        self._limit = limit
        #: In the order of their last events. Jobs that were replaced or removed disappear by themselves.
        self._logs: WeakKeyDictionary[EventLog, None] = WeakKeyDictionary()
        self._added = 0

    def add(self, log: EventLog, size: int) -> None:
        """The log has a new event of this size."""
        self._logs.pop(log, None)
        self._logs[log] = None
        self._added += size
        if self._added > self._limit:
            self._added = self._drop_oldest(log)

    def _drop_oldest(self, newest: EventLog) -> int:
        """Drop events of the longest silent jobs; return the bytes left. The newest event stays, whatever its size."""
        logs = list(self._logs)
        kept = sum(log.size for log in logs)
        if kept > self._limit:
            for log in logs:
                if log is newest or kept <= _KEPT_SHARE * self._limit:
                    break
                kept -= log.size
                log.drop()
        return kept


class KeptByTenant(defaultdict[str, KeptEvents]):
    def __init__(self) -> None:
        super().__init__(KeptEvents)


class EventLog:
    """Events numbered from 1; the newest stay. Belongs to one event loop."""

    def __init__(self, limit: int = MAX_LOG_BYTES, kept: KeptEvents | None = None) -> None:
        self._limit, self._kept = limit, kept or KeptEvents()
        self.size = 0
        self._events: deque[str] = deque()
        self._count = 0
        self._is_ended = False
        self._changed = asyncio.Event()

    async def emit(self, name: str, data: object) -> None:
        """Add an event. A display may take 100 MB as JSON: other requests get turns while it is encoded."""
        chunks: list[str] = []
        for chunk in event_chunks(name, data):
            chunks.append(chunk)
            if len(chunk) > LONG_CHUNK:
                await asyncio.sleep(0)
        self._count += 1  # after the last await: readers find as many events as are counted
        text = f"id: {self._count}\n{''.join(chunks)}"
        self._events.append(text)
        self.size += len(text)
        while self.size > self._limit and len(self._events) > 1:
            self.size -= len(self._events.popleft())
        self._kept.add(self, len(text))
        self._notify()

    def drop(self) -> None:
        self._events.clear()
        self.size = 0

    def end(self) -> None:
        self._is_ended = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self, after: int) -> AsyncIterator[str]:
        """Yield the events after this number until the log ends."""
        while True:
            changed, first = self._changed, self._count - len(self._events) + 1
            if after + 1 < first:
                yield format_event("dropped", {"events": first - 1 - after}, str(first - 1))
                after = first - 1
            elif after < self._count:
                after += 1
                yield self._events[after - first]
            elif self._is_ended:
                return
            else:
                await changed.wait()


class BackgroundJob:
    """Starts `work` at once. `cancel` ends it; its log then ends with an `error` event."""

    def __init__(self, work: Work, about: dict[str, Any], kept: KeptEvents) -> None:
        self.id, self.created = secrets.token_hex(16), time.time()
        self._about, self._log = about, EventLog(kept=kept)
        self.task = asyncio.ensure_future(self._run(work))

    @property
    def is_running(self) -> bool:
        return not self.task.done()

    def keep_body(self, request: Request) -> None:
        """Count the body of the request that started it as long as it runs."""
        release = request.app.state.bodies.keep(request.scope)
        self.task.add_done_callback(lambda _: release())

    def end_with(self, revocable: set[asyncio.Future[Any]]) -> None:
        """End when the token loses its right."""
        revocable.add(self.task)
        self.task.add_done_callback(revocable.discard)

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "created": self.created, "is_running": self.is_running, **self._about}

    async def _run(self, work: Work) -> None:
        try:
            await self._log.emit("result", await work(self._log.emit))
        except (SandboxError, HttpError) as error:
            await self._emit_error(error)
        except asyncio.CancelledError as error:
            is_operator = error.args == (ENDED_BY_OPERATOR,)
            why, fault = (ENDED_BY_OPERATOR, "host") if is_operator else ("the job was ended", "caller")
            await self._emit_error(HttpError(409, why, fault=fault))
            raise
        except Exception as error:
            _log.exception("a background job failed with an internal error")
            await self._emit_error(HttpError(500, f"internal server error ({type(error).__name__})"))
        finally:
            self._log.end()

    async def _emit_error(self, error: SandboxError | HttpError) -> None:
        await self._log.emit("error", {"error": error_to_dict(error)})

    async def events(self, after: int) -> AsyncIterator[str]:
        async with aclosing(with_keepalives(self._log.read(after))) as items:  # type: ignore[type-var]
            async for item in items:
                yield KEEPALIVE if item is None else item

    async def cancel(self) -> None:
        await cancel_and_wait(self.task)


class BackgroundJobs:
    """The jobs of one owner, at most `limit`; a new one replaces the oldest that has ended."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._jobs: dict[str, BackgroundJob] = {}

    def start(self, work: Work, about: dict[str, Any], kept: KeptEvents) -> BackgroundJob:
        if len(self._jobs) >= self._limit:
            ended = next((job for job in self._jobs.values() if not job.is_running), None)
            if ended is None:
                message = f"{self._limit} of these are already running; end one first"
                raise HttpError(429, message, headers={"Retry-After": "5"})
            del self._jobs[ended.id]
        job = BackgroundJob(work, about, kept)
        self._jobs[job.id] = job
        return job

    def all(self) -> list[BackgroundJob]:
        return list(self._jobs.values())

    def find(self, identity: str) -> BackgroundJob:
        if (job := self._jobs.get(identity)) is None:
            raise HttpError(404, f"no job {identity[:40]!r}: it ended some time ago, or the server was restarted")
        return job

    def forget(self, job: BackgroundJob) -> None:
        self._jobs.pop(job.id, None)

    async def remove(self, job: BackgroundJob) -> None:
        self.forget(job)
        await job.cancel()

    async def aclose(self) -> None:
        for job in self.all():
            await self.remove(job)


def position_of(request: Request) -> int:
    """The number of the last event that the client has, from `Last-Event-ID` or `?from=`."""
    text = request.headers.get("last-event-id") or request.query_params.get("from", "0")
    number = parse_whole_number(text)
    if number is None:
        raise InvalidRequest("must be the id of an event", field="from")
    return number
