"""A worker process as the supervisor holds it: its socket, its pipes, what it has loaded, what it uses."""

from __future__ import annotations

import contextlib
import os
import select
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from warmcell.backends.wasm.frames import Channel, Overstayed, WorkerDied, encode, encode_run
from warmcell.backends.wasm.launcher import WorkerProcess, launcher
from warmcell.backends.wasm.run_request import Directories, Directory, RunTerms
from warmcell.lifetime.descriptors import Descriptors, host_failure
from warmcell.lifetime.ownership import own
from warmcell.runner.listening import STREAMS, HeardCapture, Listener
from warmcell.runner.streams import Capture
from warmcell.toolbox.runtime import READY_MADE, WORKER_SCRIPT, interpreter, wasmtime_directory, write_bytecode

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any
else:  # its half in C: the rest takes longer to load
    import _socket as socket

_START_SECONDS = 30.0
_REAP_SECONDS = 10.0
_LOG_BYTES = 4000
_READ_BYTES = 65536
#: More than any pipe holds: a worker that says it is done and still writes is not one of ours any more.
_MAX_FINAL_READS = 64
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_STATUS_BYTES = 4096
_MOST_TERMS = 64


#: Directories of each kind that a worker has room for, unless more are needed.
USUAL_PLACES = 8


def places_for(directories: Directories) -> int:
    """How many of each kind, read-only and writable, a worker for these must have room for."""
    writable = sum(directory.is_writable for directory in directories)
    return max(USUAL_PLACES, writable, len(directories) - writable)


class OutputPipe:
    """The read end of one of a worker's output pipes, used for one run after the other.

    Never more than the limit is kept, and the writer never stalls on a full pipe.
    """

    def __init__(self, owner: Descriptors) -> None:
        self.reader, self.writer = owner.pipe()
        os.fchmod(self.writer, 0o666)  # a caged worker is another user, and opens it by its name in /proc
        os.set_blocking(self.reader, False)
        self.capture = Capture(0)

    def start(self, capture: Capture) -> None:
        self.capture = capture

    def pump(self) -> int:
        """Reads once; 0 when there is nothing to read at the moment."""
        try:
            data = os.read(self.reader, _READ_BYTES)
        except BlockingIOError:
            return 0
        self.capture.add(data)
        return len(data)

    def drain(self) -> bool:
        """Reads what is left after a run; False when it does not end."""
        return any(self.pump() < _READ_BYTES for _ in range(_MAX_FINAL_READS))


class Worker:
    """One process. Used by one thread at a time; `kill` is for any thread.

    `loaded` has only what the worker said that it loaded, oldest first. `is_clean`: no guest's code, not even for
    compiling, has touched this process, so what it compiles can be trusted. `directories`: what of the host it was
    shown, for its whole life.
    """

    def __init__(self, places: int = USUAL_PLACES) -> None:
        self.directories: Directories = ()
        self._places = places
        self.loaded: OrderedDict[str, None] = OrderedDict()
        #: What the worker was told, by its number.
        self._terms: dict[tuple[Any, ...], int] = {}
        self.is_clean = True
        self.has_begun = self.is_ready = False
        self._statm = self._stat = -1
        self.idle_since = 0.0
        #: Set by any thread, never taken back.
        self.is_killed = False
        self._is_disposed = False
        self._status: int | None = None
        self._last_words = ""
        with Descriptors() as self._descriptors:
            try:
                self._open()
                self._process = self._started()
            except OSError as error:
                raise host_failure(error, "start a WASM worker") from error
            own(self)
            try:
                self._introduce()
            except OSError as error:
                self.dispose()
                raise host_failure(error, "start a WASM worker") from error

    def begin(self) -> None:
        """Waits until its process is there, which was only asked for. Whoever gets an error disposes of it."""
        try:
            self._process.begin()
            self._statm, self._stat = self._open_status("statm"), self._open_status("stat")
            self.has_begun = True
        except OSError as error:
            raise host_failure(error, "start a WASM worker") from error

    def _open(self) -> None:
        self._streams = (OutputPipe(self._descriptors), OutputPipe(self._descriptors))
        self._log = OutputPipe(self._descriptors)
        os.set_blocking(self._log.writer, False)
        ours, self._theirs = self._descriptors.socketpair(socket.SOCK_STREAM)
        self.channel = Channel(ours)
        self._by_descriptor = {stream.reader: stream for stream in self._streams}
        self.control_poll, self.full_poll = select.poll(), select.poll()
        for poll in (self.control_poll, self.full_poll):
            poll.register(ours, select.POLLIN)
        for descriptor in self._by_descriptor:
            self.full_poll.register(descriptor, select.POLLIN)

    def _started(self) -> WorkerProcess:
        wasmtime = wasmtime_directory()
        write_bytecode()
        argv = [interpreter(), "-I", "-S", WORKER_SCRIPT, os.path.dirname(wasmtime)]
        shown = [path for path in (os.path.dirname(WORKER_SCRIPT), wasmtime, READY_MADE) if os.path.isdir(path)]
        process = launcher()(argv, self._theirs, shown, self._places)
        self._descriptors.close_only(self._theirs)
        return process

    def _introduce(self) -> None:
        """Gives the worker its ends of the pipes; ours would keep them alive. Whether it took them shows later."""
        writers = [stream.writer for stream in (*self._streams, self._log)]
        with contextlib.suppress(WorkerDied, Overstayed):
            self.channel.send({"op": "setup", "is_confined": launcher().confines}, b"", writers, timeout=_START_SECONDS)
        self._descriptors.close_only(*writers)

    def _open_status(self, name: str) -> int:
        """Kept open, so that looking needs no descriptor that might be missing; -1 where there is no /proc."""
        path = f"/proc/{self.pid}/{name}"
        try:
            return self._descriptors.opened(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return -1

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_spare(self) -> bool:
        """Nobody has used it, so it can still become a worker for any directories."""
        return self.is_clean and not self.directories

    def can_be_shown(self, directories: Directories) -> bool:
        return self.is_spare and places_for(directories) <= self._places

    def show(self, directories: Directories) -> None:
        self._process.show(directories)
        self.directories = directories

    def place(self, directory: Directory) -> str:
        """Where the worker finds a directory that it was shown."""
        return self._process.place(directory)

    def is_waiting(self) -> bool:
        """Whether it is there and silent, as a worker between two requests is. One that died can be read from."""
        return not self.is_killed and not self.control_poll.poll(0)

    def run_frames(self, terms: tuple[Any, ...], argv: Sequence[str], env: Mapping[str, str], stdin: bytes) -> bytes:
        """A run as it is asked for; the terms, which are those of `RunTerms`, come with it where the worker does not
        know them. To be sent, once.
        """
        number = self._terms.get(terms)
        if number is not None:
            return encode_run(number, argv, env, stdin)
        if len(self._terms) == _MOST_TERMS:
            self._terms.clear()
        number = self._terms[terms] = len(self._terms)
        told = {"op": "terms", "number": number, **RunTerms(*terms)._asdict()}
        return encode(told) + encode_run(number, argv, env, stdin)

    def start_streams(self, most: int, listener: Listener | None = None) -> None:
        for stream, name in zip(self._streams, STREAMS, strict=True):
            stream.start(Capture(most) if listener is None else HeardCapture(most, listener, name))

    @property
    def outputs(self) -> tuple[int, ...]:
        """The descriptors in `full_poll` that `pump` is for."""
        return tuple(self._by_descriptor)

    def pump(self, descriptor: int) -> bool:
        """Reads once; False where there will be no more."""
        if self._by_descriptor[descriptor].pump():
            return True
        # The worker's end is closed: it is dying, and the control socket will say so.
        with contextlib.suppress(KeyError):
            self.full_poll.unregister(descriptor)
        return False

    def drain(self) -> bool:
        """Takes in the rest of the output; False when the worker goes on writing after it said that it was done."""
        is_done = True
        for descriptor, _ in self.full_poll.poll(0):  # most runs write to one of them, and finding that out is cheaper
            stream = self._by_descriptor.get(descriptor)
            # A read that is not filled emptied the pipe.
            is_empty = stream is None or stream.pump() < _READ_BYTES or stream.drain()
            is_done = is_done and is_empty
        return is_done

    @property
    def captures(self) -> tuple[Capture, Capture]:
        stdout, stderr = self._streams
        return stdout.capture, stderr.capture

    def anonymous_bytes(self) -> int:
        """Memory that is the worker's alone: compiled code and libraries are mapped files. 0 when it is gone."""
        _, resident, shared, *_ = (self._read(self._statm) or b"0 0 0").split()
        return (int(resident) - int(shared)) * _PAGE_BYTES

    def cpu_seconds(self) -> float:
        """0 when it is gone."""
        after_name = self._read(self._stat).rpartition(b")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / _TICKS if after_name else 0.0

    def _read(self, descriptor: int) -> bytes:
        try:
            return os.pread(descriptor, _STATUS_BYTES, 0) if descriptor >= 0 else b""
        except ProcessLookupError:
            return b""

    def log(self) -> str:
        """The end of what the worker's runtime printed about its own failure. For our log: it names host paths."""
        if self._is_disposed:
            return self._last_words
        self._log.start(Capture(_LOG_BYTES))
        self._log.drain()
        return bytes(self._log.capture.kept).decode("utf-8", "replace").strip()

    def kill(self) -> None:
        """Ends the process at once, from any thread. Whoever waits for its answer sees it die."""
        self.is_killed = True
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
        self._descriptors.close()
        return self._status

    def abandon(self) -> None:
        """In a fork the process is the parent's: nothing here may reach it any more."""
        self.is_killed = True
        self._is_disposed = True
        self._process.abandon()
