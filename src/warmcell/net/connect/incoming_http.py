"""Feeds a peer's bytes into h11 without giving it input on which it takes quadratic time.

h11 matches header lines, trailers and chunk headers with patterns that are quadratic in the length of a run of blanks:
64 KiB of blanks hold the GIL for more than a minute. Such a run is rejected before h11 sees all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from warmcell.net.optional_packages import need

MAX_BLANKS = 128
_CUT_FROM = b" " * (MAX_BLANKS // 2)
_TOO_MANY = b" " * MAX_BLANKS
# Line ends count as blanks because h11 joins folded lines, and each fold leaves a blank.
_AS_BLANKS = bytes.maketrans(b"\t\r\n", b"   ")


class IncomingHttp:
    """Feeds one h11 connection. A long run of blanks is fine in a body and a `RemoteProtocolError` in a line."""

    def __init__(self, connection: Any) -> None:
        self._h11 = need("h11")
        self._connection = connection
        self._pieces: deque[bytes] = deque()

    def feed(self, data: bytes) -> None:
        """Queue received data; b"" means EOF."""
        self._pieces.extend(_cut_inside_runs(data))

    def next_event(self) -> Any:
        """Like `Connection.next_event`; `NEED_DATA` once all queued data is consumed."""
        while (event := self._connection.next_event()) is self._h11.NEED_DATA and self._pieces:
            self._check_line(self._pieces[0])
            self._connection.receive_data(self._pieces.popleft())
        return event

    def trailing_bytes(self) -> bytes:
        """Bytes received after the end of the message."""
        return bytes(self._connection.trailing_data[0]) + b"".join(self._pieces)

    def _check_line(self, piece: bytes) -> None:
        # When h11 wants more data, anything it still buffers is the start of a line; it never buffers body data.
        line = self._connection.trailing_data[0]
        meeting = line[-MAX_BLANKS:] + piece[:MAX_BLANKS]
        if line and _TOO_MANY in meeting.translate(_AS_BLANKS):
            raise self._h11.RemoteProtocolError(f"{MAX_BLANKS} blanks in a row in a header")


def _cut_inside_runs(data: bytes) -> Iterator[bytes]:
    """Split the data inside each long run of blanks: after the first part, h11's buffer shows if it is in a line."""
    seen, begin, position = data.translate(_AS_BLANKS), 0, 0
    while (run := seen.find(_CUT_FROM, position)) >= 0:
        cut = run + len(_CUT_FROM) // 2
        yield data[begin:cut]
        begin, position = cut, _end_of_run(seen, cut)
    yield data[begin:]


def _end_of_run(seen: bytes, position: int) -> int:
    step = len(_CUT_FROM)
    while seen.startswith(_CUT_FROM, position):
        position += step
    return position
