"""Takes in what a run writes: never more than the limit is kept, and the writer never stalls on a full pipe."""

from __future__ import annotations

import os

_READ_BYTES = 65536
#: More than any pipe holds: a worker that says it is done and still writes is not one of ours any more.
_MAX_FINAL_READS = 64


class Stream:
    """The read end of one of a worker's output pipes, used for one run after the other."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.fchmod(self._writer, 0o666)  # a caged worker is another user, and opens it by its name in /proc
        os.set_blocking(self.reader, False)
        self._kept = bytearray()
        self._most = 0
        self.is_truncated = False

    @property
    def writer(self) -> int:
        return self._writer

    def give_away_writer(self) -> None:
        """The worker has its own copy now; ours would keep the pipe alive."""
        os.close(self._writer)

    def start(self, most: int) -> None:
        self._kept = bytearray()
        self._most = most
        self.is_truncated = False

    def pump(self) -> int:
        """Reads once; 0 when there is nothing to read at the moment."""
        try:
            data = os.read(self.reader, _READ_BYTES)
        except BlockingIOError:
            return 0
        room = self._most - len(self._kept)
        self._kept += data[:room] if len(data) > room else data
        self.is_truncated = self.is_truncated or len(data) > room
        return len(data)

    def drain(self) -> bool:
        """Reads what is left after a run; False when it does not end. A read that is not filled emptied the pipe."""
        return any(self.pump() < _READ_BYTES for _ in range(_MAX_FINAL_READS))

    def kept(self) -> bytes:
        return bytes(self._kept)

    def close(self) -> None:
        os.close(self.reader)
