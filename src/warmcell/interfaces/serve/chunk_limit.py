"""ChunkLimit: h11 without floods of tiny chunks."""

from __future__ import annotations

from typing import Any

import h11

#: A chunked body may have so many pieces, and one more for every so many bytes. Parsing a chunk takes 30 us.
FREE_CHUNKS, BYTES_PER_CHUNK = 4096, 64


class ChunkLimit(h11.Connection):
    """Reject bodies in a flood of tiny chunks: a megabyte of them would block the event loop for half a minute."""

    _chunks = _body_bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._body_bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += 1
            self._body_bytes += len(event.data)
            if self._chunks > FREE_CHUNKS + self._body_bytes // BYTES_PER_CHUNK:
                raise h11.RemoteProtocolError("the body has too many small chunks")
        return event
