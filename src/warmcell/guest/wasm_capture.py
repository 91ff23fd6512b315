"""Takes in the output of a nested run, up to a limit, while the run is writing it."""

from __future__ import annotations

import os
import select
import threading

_READ_BYTES = 65536


class Capture:
    """`stdout` and `stderr` are paths for the guest; `finish` returns what was written. Never blocks the writer."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = (bytearray(), bytearray())
        self.is_truncated = [False, False]
        pipes = (os.pipe(), os.pipe())
        self._readers = [reader for reader, _ in pipes]
        self._writers = [writer for _, writer in pipes]
        self.stdout, self.stderr = (f"/proc/self/fd/{writer}" for writer in self._writers)
        self._thread = threading.Thread(target=self._drain, name="capture", daemon=True)
        self._thread.start()

    def finish(self) -> tuple[bytes, bytes]:
        for writer in self._writers:
            os.close(writer)
        self._thread.join()
        for reader in self._readers:
            os.close(reader)
        return bytes(self._kept[0]), bytes(self._kept[1])

    def _drain(self) -> None:
        poller = select.poll()
        open_streams = {reader: at for at, reader in enumerate(self._readers)}
        for reader in open_streams:
            poller.register(reader, select.POLLIN)
        while open_streams:
            for reader, _ in poller.poll():
                data = os.read(reader, _READ_BYTES)
                if not data:
                    poller.unregister(reader)
                    del open_streams[reader]
                    continue
                self._keep(open_streams[reader], data)

    def _keep(self, at: int, data: bytes) -> None:
        room = self._most - len(self._kept[at])
        self._kept[at].extend(data[:room])
        self.is_truncated[at] = self.is_truncated[at] or len(data) > room
