"""A worker process as the supervisor holds it: its socket, its pipes, what it has loaded."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import select
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from warmcell.backends.wasm.exchange import Bounds, Exchange
from warmcell.backends.wasm.frames import Channel, Overstayed, ProtocolViolation, WorkerDied
from warmcell.backends.wasm.launch import Launched, launcher
from warmcell.backends.wasm.process_stats import cpu_seconds
from warmcell.backends.wasm.streams import Stream
from warmcell.core.errors import BackendUnavailable

_SCRIPT = Path(__file__).resolve().parent.parent.parent / "guest" / "wasm_worker.py"
_START_SECONDS = 30.0
_START_MEMORY = 1 << 30
_REAP_SECONDS = 5.0
_LOG_BYTES = 4000


@functools.cache
def wasmtime_directory() -> str:
    """Where wasmtime is installed, without importing it."""
    spec = importlib.util.find_spec("wasmtime")
    if spec is None or not spec.origin:
        raise BackendUnavailable("wasmtime is not installed", hint="pip install 'warmcell[wasm]'")
    return str(Path(spec.origin).resolve().parent.parent)


@functools.cache
def wasmtime_version() -> str:
    """The version that is installed, from its metadata directory: reading it properly costs more than a run."""
    installed = sorted(Path(wasmtime_directory()).glob("wasmtime-*.dist-info"))
    return installed[-1].name.removeprefix("wasmtime-").removesuffix(".dist-info") if installed else "unknown"


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
        argv = [sys.executable, "-I", "-S", str(_SCRIPT), wasmtime_directory()]
        read_only = (str(_SCRIPT.parent), wasmtime_directory(), *paths[0])
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

    def await_ready(self) -> None:
        """Returns when the worker can take requests; a new worker needs a few hundredths of a second."""
        if self.is_ready:
            return
        try:
            frame = Exchange(self, Bounds(_START_SECONDS, _START_MEMORY)).wait()
        except (WorkerDied, Overstayed, ProtocolViolation) as error:
            detail = self.log() or str(error)
            self.dispose()
            raise BackendUnavailable(f"a WASM worker did not start: {detail}") from error
        self.is_ready = frame.message.get("op") == "ready"

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

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid) or 0.0

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
