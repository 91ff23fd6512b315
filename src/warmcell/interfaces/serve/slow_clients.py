"""Connections of those who send too slowly are closed: of `warmcell serve` and of `warmcell mcp --http`."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from warmcell.interfaces.serve.gathered_writes import GatheredWrites

MAX_HEAD = 64 * 1024
#: From the first byte, or from nothing at all, to a whole request head.
HEAD_SECONDS = 15.0
#: From there to a whole body. Longer than our own routes wait for one, which say why they wait no more.
BODY_SECONDS = 75.0


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose request does not come: uvicorn waits for ever for one that has begun."""

    _timer: asyncio.TimerHandle | None = None
    _is_in_body = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(GatheredWrites(transport, self.loop))  # type: ignore[arg-type]
        self._wait(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        was_in_body, self._is_in_body = self._is_in_body, self.conn.their_state is h11.SEND_BODY
        has_part_of_head = self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
        if self._is_in_body != was_in_body or not (self._is_in_body or has_part_of_head):
            self._stop_waiting()
        if self._timer is None and (self._is_in_body or has_part_of_head):
            # Set once for each part: one that drips gets no more time with every byte.
            self._wait(BODY_SECONDS if self._is_in_body else HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]  # else it waited for all others of this turn of the loop
        super().on_response_complete()

    def _wait(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
