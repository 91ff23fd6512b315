"""The supervisor's handle on a worker process: its socket, its pipes, its loaded modules, its resource usage."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from warmcell.backends.wasm.channel import Channel, Frame, WorkerDied, WorkerTimedOut
from warmcell.backends.wasm.launcher import check_executable_memory, worker_launcher
from warmcell.backends.wasm.run_request import HostDirectory, Mounts
from warmcell.core.records import dataclass
from warmcell.guest.wasm.protocol import RunSpec, encode_run, encode_spec
from warmcell.lifetime.descriptors import Descriptors, host_failure
from warmcell.lifetime.host_program import base_executable
from warmcell.lifetime.ownership import own
from warmcell.lifetime.run import Run
from warmcell.runner.listening import STREAMS, DeliveringCapture, Listener, OutputThrottle
from warmcell.runner.streams import Capture
from warmcell.toolbox.runtime import WORKER_SCRIPT, ready_made_directory, wasmtime_directory, write_worker_bytecode

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from warmcell.backends.wasm.caged_launcher import CagedProcess
    from warmcell.backends.wasm.launcher import PlainProcess
else:  # the C half of the module: the rest takes longer to load
    import _socket as socket

_START_SECONDS = 30.0
_REAP_SECONDS = 10.0
_LOG_BYTES = 4000
_READ_BYTES = 65536
#: More than any pipe holds. A worker that reported an exit and still writes has been taken over.
_MAX_FINAL_READS = 64
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_STATUS_BYTES = 4096
_MOST_SPECS = 64
#: Mount slots of each kind that a worker has, unless more are needed.
USUAL_SLOTS = 8
#: Most runs end within this time. Their output is then read once, after the exit report.
_FIRST_WAIT_MS = 2
_CHECK_SECONDS = 0.025


def slots_for(directories: Mounts) -> int:
    """How many mount slots of each kind, read-only and writable, these directories need."""
    writable = sum(directory.is_writable for directory in directories)
    return max(USUAL_SLOTS, writable, len(directories) - writable)


class OutputPipe:
    """One of a worker's output pipes, used for all of its runs. Keeps no more than the limit, and reads the rest."""

    def __init__(self, owner: Descriptors) -> None:
        self.reader, self.writer = owner.pipe()
        os.fchmod(self.writer, 0o666)  # a caged worker is another user and opens it through /proc
        os.set_blocking(self.reader, False)
        self.capture = Capture(0)

    def start(self, capture: Capture) -> None:
        self.capture = capture

    def pump(self) -> int:
        """Reads once. 0 if there is nothing to read now."""
        try:
            data = os.read(self.reader, _READ_BYTES)
        except BlockingIOError:
            return 0
        self.capture.add(data)
        return len(data)

    def drain(self) -> bool:
        """Reads what is left after a run. False if it does not end."""
        return any(self.pump() < _READ_BYTES for _ in range(_MAX_FINAL_READS))


class WorkerHandle:
    """One process. Used by one thread at a time; `kill` is for any thread.

    `loaded` has the modules that the worker reported as loaded, oldest first. `is_clean`: this process has never had
    guest code, not even to compile it, so what it compiles can be trusted. `mounts` never change once set. Making and
    starting it end with `RunCancelled` when `run` is cancelled.
    """

    def __init__(self, run: Run, mount_slots: int = USUAL_SLOTS) -> None:
        self.mounts: Mounts = ()
        self._mount_slots = mount_slots
        self.loaded: OrderedDict[str, None] = OrderedDict()
        #: The numbers of the specs that the worker knows.
        self._specs: dict[RunSpec, int] = {}
        self.is_clean = True
        self.is_started = self.is_ready = False
        self._statm = self._stat = -1
        #: Set by any thread, never reset.
        self.is_killed = False
        self._is_disposed = False
        self._status: int | None = None
        self._last_words = ""
        #: What the host replaced, if its cage ended for that.
        self.replaced = ""
        with Descriptors() as self._descriptors:
            try:
                self._open()
                self._process = self._launch(run)
            except OSError as error:
                raise host_failure(error, "start a WASM worker") from error
            own(self)
            try:
                self._send_setup()
            except OSError as error:
                self.dispose()
                raise host_failure(error, "start a WASM worker") from error

    def start(self, run: Run) -> None:
        """Waits until the process exists. If this fails, the caller disposes of the handle."""
        try:
            self._process.start(run)
            self._statm, self._stat = self._open_status("statm"), self._open_status("stat")
            self.is_started = True
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

    def _launch(self, run: Run) -> CagedProcess | PlainProcess:
        """In the base interpreter of this one, which gets the path of wasmtime."""
        check_executable_memory()
        wasmtime = wasmtime_directory()
        write_worker_bytecode()
        argv = [base_executable(), "-I", "-S", WORKER_SCRIPT, os.path.dirname(wasmtime)]
        directories = (os.path.dirname(WORKER_SCRIPT), wasmtime, ready_made_directory())
        shown = [path for path in directories if os.path.isdir(path)]
        process = worker_launcher().launch(argv, self._theirs, shown, self._mount_slots, run)
        self._descriptors.close_only(self._theirs)
        return process

    def _send_setup(self) -> None:
        """Sends the write ends of the pipes and closes them here. A failure shows when the worker does not answer."""
        writers = [stream.writer for stream in (*self._streams, self._log)]
        with contextlib.suppress(WorkerDied, WorkerTimedOut):
            message = {"op": "setup", "is_confined": worker_launcher().is_confining}
            self.channel.send(message, b"", writers, timeout=_START_SECONDS)
        self._descriptors.close_only(*writers)

    def _open_status(self, name: str) -> int:
        """Kept open, so that reading it needs no new descriptor. -1 without /proc."""
        path = f"/proc/{self.pid}/{name}"
        try:
            return self._descriptors.open(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return -1

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_spare(self) -> bool:
        """Unused: any directories can still be mounted."""
        return self.is_clean and not self.mounts

    def can_mount(self, directories: Mounts) -> bool:
        return self.is_spare and slots_for(directories) <= self._mount_slots

    def mount(self, directories: Mounts) -> None:
        self._process.mount(directories)
        self.mounts = directories

    def path_of(self, directory: HostDirectory) -> str:
        """The path of a mounted directory inside the worker."""
        return self._process.path_of(directory)

    def is_waiting(self) -> bool:
        """Whether it is alive and idle. The socket of a dead worker is readable."""
        return not self.is_killed and not self.control_poll.poll(0)

    def encode_run(self, spec: RunSpec, argv: Sequence[str], env: Mapping[str, str], stdin: bytes) -> bytes:
        """The frame of a run, after that of its spec if the worker does not know it. The caller must send it."""
        number = self._specs.get(spec)
        if number is not None:
            return encode_run(number, argv, env, stdin)
        if len(self._specs) == _MOST_SPECS:
            self._specs.clear()
        number = self._specs[spec] = len(self._specs)
        return encode_spec(number, spec) + encode_run(number, argv, env, stdin)

    def start_streams(self, most: int, listener: Listener | None = None) -> None:
        for stream, name in zip(self._streams, STREAMS, strict=True):
            stream.start(Capture(most) if listener is None else DeliveringCapture(most, listener, name))

    @property
    def outputs(self) -> tuple[int, ...]:
        """The descriptors in `full_poll` that `pump` is for."""
        return tuple(self._by_descriptor)

    def pump(self, descriptor: int) -> bool:
        """Reads once. False at the end of the stream."""
        if self._by_descriptor[descriptor].pump():
            return True
        # The worker closed its end: it is dying, and the control socket will report that.
        with contextlib.suppress(KeyError):
            self.full_poll.unregister(descriptor)
        return False

    def drain(self) -> bool:
        """Reads the rest of the output. False if the worker still writes after its exit report."""
        is_done = True
        for descriptor, _ in self.full_poll.poll(0):  # cheaper than reading both: most runs write to one
            stream = self._by_descriptor.get(descriptor)
            # A short read has emptied the pipe.
            is_empty = stream is None or stream.pump() < _READ_BYTES or stream.drain()
            is_done = is_done and is_empty
        return is_done

    @property
    def captures(self) -> tuple[Capture, Capture]:
        stdout, stderr = self._streams
        return stdout.capture, stderr.capture

    def anonymous_bytes(self) -> int:
        """The worker's private memory, without mapped files such as compiled code. 0 if it is gone."""
        _, resident, shared, *_ = (self._read(self._statm) or b"0 0 0").split()
        return (int(resident) - int(shared)) * _PAGE_BYTES

    def cpu_seconds(self) -> float:
        """Processor time used so far. 0 if it is gone."""
        after_name = self._read(self._stat).rpartition(b")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / _TICKS if after_name else 0.0

    def _read(self, descriptor: int) -> bytes:
        try:
            return os.pread(descriptor, _STATUS_BYTES, 0) if descriptor >= 0 else b""
        except ProcessLookupError:
            return b""

    def log(self) -> str:
        """The end of the worker's own stderr. For our log only: it names host paths."""
        if self._is_disposed:
            return self._last_words
        self._log.start(Capture(_LOG_BYTES))
        self._log.drain()
        return bytes(self._log.capture.kept).decode("utf-8", "replace").strip()

    def kill(self) -> None:
        """Kills the process, from any thread. A pending request ends with `WorkerDied`."""
        self.is_killed = True
        self._process.kill()

    def dispose(self) -> int | None:
        """Kills, reaps, reads the last output, closes. Returns the wait status. Only for the thread that uses it."""
        if self._is_disposed:
            return self._status
        self.kill()
        self._status = self._process.wait(_REAP_SECONDS)
        self.replaced = self._process.replaced
        try:
            self.drain()  # the listener of its run may raise
            self._last_words = self.log()
        finally:
            self._is_disposed = True
            self._descriptors.close()
        return self._status

    def abandon(self) -> None:
        """In a fork the process belongs to the parent: nothing here may touch it."""
        self.is_killed = True
        self._is_disposed = True
        self._process.abandon()


class WorkerOverMemory(Exception):
    """The worker grew past the request's memory limit. It is still running and must be killed."""


class WorkerOverCpu(Exception):
    """The worker used more processor time than the request allows. It is still running and must be killed."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What a request may use. `memory_bytes` limits how much the worker may grow."""

    seconds: float
    memory_bytes: int
    cpu_seconds: float | None = None


#: Handles a host call of the worker. It answers on the worker's channel, now or later.
HostCallHandler = Callable[[Frame], None]


class PendingRequest:
    """A request that a worker is working on: waits for the answer, reads output, enforces limits. Used in one thread.

    `make_handler` is called at the first host call; without it there are no host calls."""

    def __init__(
        self,
        worker: WorkerHandle,
        limits: RequestLimits,
        make_handler: Callable[[PendingRequest], HostCallHandler] | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._worker, self._limits, self._make_handler = worker, limits, make_handler
        self._handler: HostCallHandler | None = None
        self._throttle = None if listener is None else OutputThrottle(listener, worker.outputs, worker.full_poll)
        now = time.monotonic()
        self._deadline = now + limits.seconds
        self._next_check = now + _CHECK_SECONDS
        self._memory_before = 0
        self._cpu_before = 0.0
        #: Seconds spent on host calls that do not count as the guest's time.
        self.extra_seconds = 0.0

    def cpu_seconds(self) -> float:
        """Processor time since the request started, for a worker that can no longer report it."""
        return max(0.0, self._worker.cpu_seconds() - self._cpu_before)

    def seconds_to_deadline(self) -> float:
        """Until the deadline; 0 after it."""
        return max(0.0, self._deadline - time.monotonic())

    def extend(self, seconds: float) -> None:
        """Moves the deadline."""
        self._deadline += seconds
        self.extra_seconds += seconds

    def wait(self) -> Frame:
        """The worker's answer. Raises an exception above, `WorkerTimedOut` or `WorkerDied`."""
        # Read while the worker wakes up: this delays nothing, and misses nothing that the request allocates.
        self._memory_before = self._worker.anonymous_bytes()
        if self._limits.cpu_seconds is not None:
            self._cpu_before = self._worker.cpu_seconds()
        if self._worker.control_poll.poll(_FIRST_WAIT_MS):
            frame = self._receive()
            if frame is not None:
                return frame
        if self._limits.cpu_seconds is None:  # only reported, and in hundredths of a second
            self._cpu_before = self._worker.cpu_seconds()
        try:
            while (frame := self._poll()) is None:
                pass
            return frame
        finally:
            if self._throttle is not None:
                self._throttle.end()

    def _poll(self) -> Frame | None:
        now = time.monotonic()
        if now >= self._deadline:
            return self._receive_late()
        if now >= self._next_check:
            self._check_usage(now)
        pause = min(self._deadline, self._next_check) - now
        frame = None
        for descriptor, _ in self._worker.full_poll.poll(max(0, pause) * 1000):
            if descriptor == self._worker.channel.fileno():
                frame = self._receive()
            elif self._throttle is None:
                self._worker.pump(descriptor)
            elif not self._throttle.on_ready(descriptor) and not self._worker.pump(descriptor):
                self._throttle.close_output(descriptor)
        if self._throttle is not None:
            self._throttle.update()
        return frame

    def _receive_late(self) -> Frame:
        """The answer, if it arrived while this thread had no processor or was in a listener, past the deadline."""
        frame = self._receive() if self._worker.control_poll.poll(0) else None
        if frame is None:
            raise WorkerTimedOut
        return frame

    def _receive(self) -> Frame | None:
        """The answer, if it arrived. Handles all host calls that were read: poll would not report them again."""
        frame = self._worker.channel.receive()
        while frame is not None and frame.message.get("op") == "call" and self._make_handler is not None:
            if self._handler is None:
                self._handler = self._make_handler(self)
            self._handler(frame)
            frame = self._worker.channel.next_received()
        return frame

    def _check_usage(self, now: float) -> None:
        self._next_check = now + _CHECK_SECONDS
        if self._worker.anonymous_bytes() - self._memory_before > self._limits.memory_bytes:
            raise WorkerOverMemory
        if self._limits.cpu_seconds is not None and self.cpu_seconds() > self._limits.cpu_seconds:
            raise WorkerOverCpu
