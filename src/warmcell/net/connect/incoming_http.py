"""Bytes of a peer on their way into h11, so that none of them can hold up the host.

h11 reads header lines, trailers and chunk headers with patterns that take quadratic time over a long run of blanks:
64 KiB of them stop every thread of this process for more than a minute. So such a run is refused before h11 sees all
of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from warmcell.net.optional_packages import need

MAX_BLANKS = 128
_CUT_FROM = b" " * (MAX_BLANKS // 2)
_TOO_MANY = b" " * MAX_BLANKS
# Line ends count as blanks: h11 joins folded lines, each of which leaves a blank behind.
_AS_BLANKS = bytes.maketrans(b"\t\r\n", b"   ")


class IncomingHttp:
    """Feeds one h11 connection. A run of blanks in a body passes, one in a line is a `RemoteProtocolError`."""

    def __init__(self, connection: Any) -> None:
        self._h11 = need("h11")
        self._connection = connection
        self._pieces: deque[bytes] = deque()

    def feed(self, data: bytes) -> None:
        """Takes what was read; b"" says that the peer has closed."""
        self._pieces.extend(_cut_inside_runs(data))

    def next_event(self) -> Any:
        """As `Connection.next_event`; `NEED_DATA` once everything that was fed is used up."""
        while (event := self._connection.next_event()) is self._h11.NEED_DATA and self._pieces:
            self._check_line(self._pieces[0])
            self._connection.receive_data(self._pieces.popleft())
        return event

    def left_over(self) -> bytes:
        """What came after the message."""
        return bytes(self._connection.trailing_data[0]) + b"".join(self._pieces)

    def _check_line(self, piece: bytes) -> None:
        # What h11 still holds when it wants more is the beginning of a line; of a body it holds nothing back.
        line = self._connection.trailing_data[0]
        meeting = line[-MAX_BLANKS:] + piece[:MAX_BLANKS]
        if line and _TOO_MANY in meeting.translate(_AS_BLANKS):
            raise self._h11.RemoteProtocolError(f"{MAX_BLANKS} blanks in a row in a header")


def _cut_inside_runs(data: bytes) -> Iterator[bytes]:
    """The data, cut inside each long run of blanks: by then it shows whether h11 is reading a line or a body."""
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
