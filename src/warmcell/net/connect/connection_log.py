"""The connections of a sandbox: a log for its owner, and the open ones, which a change of the rules may cut."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from warmcell.core.errors import FetchFailed
from warmcell.core.types import Connection
from warmcell.lifetime.ownership import Lock
from warmcell.net.connect.dial import ByteStream, SocketStream
from warmcell.net.connect.limits import TokenBucket
from warmcell.net.rules.hosts import IPAddress, is_own
from warmcell.net.rules.rule_book import Decision, EgressRequest, Narrowing

#: Length of the log.
MOST_CONNECTIONS = 1000
#: The audit lists so many decisions of one sandbox at once, and then one more every so many seconds.
AUDITED_AT_ONCE, AUDIT_SECONDS = 500, 10.0
_CUT_SECONDS = 10.0


class _Entry:
    """A row of the log. While `stream` is open, the numbers of bytes are taken from it."""

    __slots__ = ("host", "is_allowed", "port", "received", "rule", "sent", "stream", "time")

    def __init__(self, request: EgressRequest, decision: Decision) -> None:
        self.time = time.time()
        self.host, self.port = request.host.name, request.port
        self.rule, self.is_allowed = decision.rule, decision.allowed
        self.sent = self.received = 0
        self.stream: SocketStream | None = None

    def to_connection(self) -> Connection:
        stream = self.stream
        sent, received = (self.sent, self.received) if stream is None else (stream.bytes_written, stream.bytes_read)
        return Connection(self.time, self.host, self.port, sent, received, self.rule, self.is_allowed)

    def end(self) -> None:
        if self.stream is not None:
            self.sent, self.received = self.stream.bytes_written, self.stream.bytes_read
            self.stream = None


class OpenConnection:
    """An outgoing request, from before it is judged until it has ended. Used on one event loop only."""

    def __init__(self, log: ConnectionLog, request: EgressRequest) -> None:
        self.request = request
        self.addresses: tuple[IPAddress, ...] = ()
        self.loop = asyncio.get_running_loop()
        self._log = log
        self._entry: _Entry | None = None
        self._streams: list[ByteStream] = []
        self._is_cut = False

    def allow(self, decision: Decision, addresses: tuple[IPAddress, ...]) -> None:
        self.addresses = addresses
        self._entry = self._log.add(self.request, decision)

    def attach(self, server: SocketStream, *others: ByteStream) -> None:
        """Sets the streams that `cut` closes. Raises `FetchFailed` if it was cut before."""
        if self._is_cut:
            server.close()
        self.check()
        self._streams = [server, *others]
        if self._entry is not None:
            self._entry.stream = server

    def check(self) -> None:
        """Raises `FetchFailed` if it was cut: a truncated response must not look complete."""
        if self._is_cut:
            where = f"{self.request.host.in_url}:{self.request.port}"
            raise FetchFailed(f"{where} is no longer allowed", reason="refused")

    def cut(self) -> None:
        self._is_cut = True
        for stream in self._streams:
            stream.close()

    def end(self) -> None:
        if self._entry is not None:
            self._entry.end()


class ConnectionLog:
    """The log of a sandbox over all its runs, or of one run, which also adds to its sandbox's. Thread-safe."""

    def __init__(self, sandbox: ConnectionLog | None = None) -> None:
        self._sandbox = sandbox
        self._lock = Lock()
        self._entries: deque[_Entry] = deque(maxlen=MOST_CONNECTIONS)
        self._open: set[OpenConnection] = set()
        self._budget = TokenBucket(AUDITED_AT_ONCE, AUDITED_AT_ONCE * AUDIT_SECONDS, time.monotonic())
        self._left_out = 0

    def count_for_audit(self) -> dict[str, Any]:
        """Counts a decision. Returns event fields: whether the audit leaves it out, and how many it left out before.

        Without this bound, a guest could cause so many decisions that the audit file loses everything else.
        """
        if self._sandbox is not None:
            return self._sandbox.count_for_audit()
        with self._lock:
            now = time.monotonic()
            if not self._budget.has_token(now):
                self._left_out += 1
                return {"is_left_out": True}
            self._budget.take()
            fields: dict[str, Any] = {"left_out": self._left_out} if self._left_out else {}
            self._left_out = 0
            return fields if self._budget.has_token(now) else {**fields, "is_last_listed": True}

    def add(self, request: EgressRequest, decision: Decision) -> _Entry:
        entry = _Entry(request, decision)
        self._keep(entry)
        return entry

    def _keep(self, entry: _Entry) -> None:
        with self._lock:
            self._entries.append(entry)
        if self._sandbox is not None:
            self._sandbox._keep(entry)

    def connections(self) -> list[Connection]:
        """The last `MOST_CONNECTIONS`, oldest first."""
        with self._lock:
            return [entry.to_connection() for entry in self._entries]

    @contextmanager
    def track(self, request: EgressRequest) -> Iterator[OpenConnection]:
        """Enter it before reading the rules, so that a connection judged by old rules is one that `cut` finds."""
        connection = OpenConnection(self, request)
        cutting = self._sandbox or self
        with cutting._lock:
            cutting._open.add(connection)
        try:
            yield connection
        finally:
            with cutting._lock:
                cutting._open.discard(connection)
            connection.end()

    def cut(self, narrowing: Narrowing) -> None:
        """Closes open connections that are no longer allowed, and waits for that. Not for event loops.

        Call it when the rules have this narrowing: addresses that are still being looked up are judged by those.
        """
        with self._lock:
            # One without addresses is judged on its loop, because it may be getting them just now.
            found = [item for item in self._open if not item.addresses or not _is_still_allowed(item, narrowing)]
        waits = [event for item in found if (event := _cut_on_its_loop(item, narrowing)) is not None]
        for event in waits:
            event.wait(_CUT_SECONDS)


def _is_still_allowed(connection: OpenConnection, narrowing: Narrowing) -> bool:
    request = connection.request
    return narrowing.judge(request).allowed and all(
        narrowing.judge_address(address, request.port, is_own) is None for address in connection.addresses
    )


def _cut_on_its_loop(connection: OpenConnection, narrowing: Narrowing) -> threading.Event | None:
    done = threading.Event()

    def cut() -> None:
        if not _is_still_allowed(connection, narrowing):
            connection.cut()
        done.set()

    with suppress(RuntimeError):  # its loop was closed, and the connection with it
        connection.loop.call_soon_threadsafe(cut)
        return done
    return None
