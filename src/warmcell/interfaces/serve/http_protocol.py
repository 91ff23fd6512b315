"""HTTP/1.1 with bounds on slow, idle and wasteful clients; used by `warmcell serve` and `warmcell mcp --http`."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from warmcell.interfaces.serve.chunk_limit import ChunkLimit
from warmcell.interfaces.serve.coalesced_writes import CoalescingTransport
from warmcell.interfaces.serve.connection_shares import ConnectionShares

MAX_HEAD = 64 * 1024
#: From the connection, or from the first byte of a head, to the whole head.
HEAD_SECONDS = 15.0
#: From there to the whole body. Longer than `requests.BODY_SECONDS`, after which our own routes answer 408.
BODY_SECONDS = 75.0
#: A client that takes no byte of its response for so long is disconnected.
STALLED_SECONDS = 60.0


class StallGuard(asyncio.Protocol):
    """Abort a connection whose client takes nothing of a full send buffer. Put it before the protocol it guards."""

    transport: Any
    _stall: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None:
            self._check_progress(None)

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_stall_timer()
        super().connection_lost(exc)

    def _check_progress(self, before: int | None) -> None:
        """Nothing is added while the buffer is full, so it shrinks or is stalled."""
        size = self.transport.get_write_buffer_size()
        if before is not None and size >= before:
            self.transport.abort()
        else:
            later = asyncio.get_running_loop().call_later
            self._stall = later(STALLED_SECONDS, self._check_progress, size)

    def _stop_stall_timer(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


class DeadlineProtocol(StallGuard, H11Protocol):
    """Close connections whose request does not arrive, or whose response is not taken; uvicorn waits forever."""

    _timer: asyncio.TimerHandle | None = None
    _is_in_body = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        #: Where connections are counted.
        self._shares: ConnectionShares | None = getattr(self.server_state, "connection_limit", None)
        self.conn = ChunkLimit(h11.SERVER, self.config.h11_max_incomplete_event_size or MAX_HEAD)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(CoalescingTransport(transport, self.loop))  # type: ignore[arg-type]
        self._start_timer(HEAD_SECONDS)
        if self._shares is not None:
            self._make_room(self._shares)

    def _make_room(self, shares: ConnectionShares) -> None:
        """Close a connection if there are too many."""
        oldest = shares.add(self, (self.client or ("",))[0], len(self.connections))
        if oldest is not None:
            assert isinstance(oldest, DeadlineProtocol)
            oldest.transport.close()
            self.connections.discard(oldest)
            shares.remove(oldest)

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        was_in_body, self._is_in_body = self._is_in_body, self.conn.their_state is h11.SEND_BODY
        has_partial_head = self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
        if self._is_in_body != was_in_body or not (self._is_in_body or has_partial_head):
            self._stop_timer()
        if self._timer is None and (self._is_in_body or has_partial_head):
            # Started once per head and body: a client that sends byte by byte does not extend its deadline.
            self._start_timer(BODY_SECONDS if self._is_in_body else HEAD_SECONDS)
        if self._shares is not None and not self.is_idle:
            self._shares.mark_busy(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._leave_shares()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._leave_shares()
        super().handle_websocket_upgrade(event)

    def _leave_shares(self) -> None:
        if self._shares is not None:
            self._shares.remove(self)

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]  # do not wait for the rest of this loop iteration
        super().on_response_complete()
        if self._shares is not None and self.is_idle:
            self._shares.mark_idle(self)

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
