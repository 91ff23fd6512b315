"""A worker process as the supervisor holds it: its socket, its pipes, what it has loaded."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence

from warmcell.backends.wasm.frames import Channel, Overstayed, WorkerDied
from warmcell.backends.wasm.launcher import Launched, launcher
from warmcell.backends.wasm.runtime import WORKER_SCRIPT, wasmtime_directory
from warmcell.core.errors import BackendUnavailable

_START_SECONDS = 30.0
_REAP_SECONDS = 5.0
_LOG_BYTES = 4000
_READ_BYTES = 65536
#: More than any pipe holds: a worker that says it is done and still writes is not one of ours any more.
_MAX_FINAL_READS = 64


class Stream:
    """The read end of one of a worker's output pipes, used for one run after the other.

    Never more than the limit is kept, and the writer never stalls on a full pipe.
    """

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


class Worker:
    """One process. Used by one thread at a time; `kill` is for any thread."""

    def __init__(self, paths: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())) -> None:
        self.paths = paths
        self.loaded: OrderedDict[str, int] = OrderedDict()
        #: No guest's code, not even for compiling, has touched this process: what it compiles can be trusted.
        self.is_clean = True
        self.is_ready = False
        self.idle_since = 0.0
        self._is_killed = threading.Event()
        self._is_disposed = False
        self._status: int | None = None
        self._last_words = ""
        self._streams = (Stream(), Stream())
        self._log = Stream()
        self.channel, self._process = self._start(paths)
        self._by_descriptor = {stream.reader: stream for stream in self._streams}
        self.control_poll, self.full_poll = self._polls()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self, paths: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[Channel, Launched]:
        ours, theirs = socket.socketpair()
        argv = [sys.executable, "-I", "-S", str(WORKER_SCRIPT), wasmtime_directory()]
        read_only = (str(WORKER_SCRIPT.parent), wasmtime_directory(), *paths[0])
        try:
            process = launcher()(argv, theirs, read_only, paths[1])
        except OSError as error:
            raise BackendUnavailable(f"could not start a WASM worker: {error}") from error
        finally:
            theirs.close()
        channel = Channel(ours)
        os.set_blocking(self._log.writer, False)
        writers = [stream.writer for stream in (*self._streams, self._log)]
        with contextlib.suppress(WorkerDied, Overstayed):
            channel.send({"op": "setup"}, b"", writers, timeout=_START_SECONDS)
        for stream in (*self._streams, self._log):
            stream.give_away_writer()
        return channel, process

    def _polls(self) -> tuple[select.poll, select.poll]:
        control, full = select.poll(), select.poll()
        for poll in (control, full):
            poll.register(self.channel.fileno(), select.POLLIN)
        for descriptor in self._by_descriptor:
            full.register(descriptor, select.POLLIN)
        return control, full

    def start_streams(self, most: int) -> None:
        for stream in self._streams:
            stream.start(most)

    def pump(self, descriptor: int) -> None:
        if not self._by_descriptor[descriptor].pump():
            # The worker's end is closed: it is dying, and the control socket will say so.
            with contextlib.suppress(KeyError):
                self.full_poll.unregister(descriptor)

    def drain(self) -> bool:
        """Takes in the rest of the output; False when the worker goes on writing after it said that it was done."""
        return all([stream.drain() for stream in self._streams])

    @property
    def streams(self) -> Sequence[Stream]:
        return self._streams

    def log(self) -> str:
        """The end of what the worker's runtime printed about its own failure."""
        if self._is_disposed:
            return self._last_words
        self._log.start(_LOG_BYTES)
        self._log.drain()
        return self._log.kept().decode("utf-8", "replace").strip()

    @property
    def is_killed(self) -> bool:
        return self._is_killed.is_set()

    def kill(self) -> None:
        """Ends the process at once, from any thread. Whoever waits for its answer sees it die."""
        self._is_killed.set()
        self._process.kill()

    def dispose(self) -> int | None:
        """Kills, reaps, takes in the last output, closes. Returns the wait status. For the thread that holds it."""
        if self._is_disposed:
            return self._status
        self.kill()
        self._status = self._process.wait(_REAP_SECONDS)
        self.drain()
        self._last_words = self.log()
        self._is_disposed = True
        self.channel.close()
        for stream in (*self._streams, self._log):
            stream.close()
        return self._status
