"""The main loop of a supervisor process: it runs requests of the program that started it, until that disconnects.

A thread for each request carries it out and answers. An event loop in between takes an eighth more processor time.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from warmcell.core.errors import BackendUnavailable, SandboxError
from warmcell.core.types import ExecRequest, ExecResult
from warmcell.lifetime.host_program import share_machine
from warmcell.lifetime.run import Run, RunCancelled
from warmcell.lifetime.threads import worker_threads

LENGTH = struct.Struct("!Q")
#: The number of the message that a supervisor sends when it has carried out a run of its own.
READY = -1
#: Programs that are kept built.
_MOST_PROGRAMS = 32
_FIRST_RUN = ExecRequest("python", "pass", 60)
_PIECE = 1 << 18


def frame(message: object) -> bytes:
    payload = pickle.dumps(message)
    return LENGTH.pack(len(payload)) + payload


def unframe(received: bytearray) -> Iterator[Any]:
    """The complete messages at the start of what was received, which are removed from it."""
    start = 0
    while len(received) - start >= LENGTH.size:
        (size,) = LENGTH.unpack_from(received, start)
        end = start + LENGTH.size + size
        if len(received) < end:
            break
        with memoryview(received) as view:
            message = pickle.loads(view[start + LENGTH.size : end])  # noqa: S301  # of our own process
        start = end
        yield message
    del received[:start]


def serve(descriptor: int) -> None:
    """Serves requests until the caller disconnects."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)
    share_machine()
    # On a full machine, runs that do not preempt each other when they wake up are a few per cent more a second.
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    connection = socket.socket(fileno=descriptor)
    connection.setblocking(True)
    messages = _receive(connection)
    make = next(messages, None)
    if make is not None:
        with make() as backend:
            _Service(connection, backend).run(messages)


def _receive(connection: socket.socket) -> Iterator[Any]:
    """Until the caller disconnects."""
    received = bytearray()
    with suppress(OSError):
        while piece := connection.recv(_PIECE):
            received += piece
            yield from unframe(received)


class _Service:
    """Runs requests side by side. Closing the backend ends those in progress."""

    def __init__(self, connection: socket.socket, backend: Any) -> None:
        self._connection, self._backend = connection, backend
        self._sending = threading.Lock()
        self._runs: dict[int, Run] = {}
        self._programs = _Programs(backend.build_blocking)

    def run(self, messages: Iterator[tuple[int, bytes | None, bytes | None]]) -> None:
        worker_threads.start(self._warm_up)
        for number, request, program in messages:
            if request is not None:
                self._start(number, request, program)
            elif (run := self._runs.get(number)) is not None:  # else it has just ended
                run.cancel()
        self._programs.close()

    def _start(self, number: int, request: bytes, program: bytes | None) -> None:
        run = self._runs[number] = Run()
        try:
            worker_threads.start(partial(self._carry_out, number, run, request, program))
        except SandboxError as error:  # there is no thread for it
            del self._runs[number]
            self._send(number, None, error)

    def _warm_up(self) -> Callable[[], None]:
        """Carries out a run, so that the next one finds everything started, and tells the program."""
        with suppress(SandboxError):  # the program's own runs will report it
            self._backend.execute_blocking(_FIRST_RUN)
        return partial(self._send, READY)

    def _carry_out(self, number: int, run: Run, request: bytes, program: bytes | None) -> Callable[[], None]:
        """Returns the call that sends the answer."""
        try:
            # Not with the message: a request that cannot be read here would end all other runs.
            asked: ExecRequest = pickle.loads(request)  # noqa: S301  # of the program that started us
            if program is None:
                answer = partial(self._send, number, self._backend.execute_blocking(asked, run=run))
            else:
                with self._programs.use(program, run) as built:
                    answer = partial(self._send, number, built.carry_out(asked, run))
        except BaseException as error:
            answer = partial(self._send, number, None, RunCancelled() if run.is_cancelled else _as_sandbox_error(error))
        del self._runs[number]
        return answer

    def _send(self, number: int, result: ExecResult | None = None, error: Exception | None = None) -> None:
        try:
            message = frame((number, result, error))
        except Exception as problem:  # a program that gets no answer would wait without end
            message = frame((number, None, _as_sandbox_error(problem)))
        with self._sending, suppress(OSError):  # the program has disconnected
            self._connection.sendall(message)


def _as_sandbox_error(error: BaseException) -> Exception:
    if isinstance(error, SandboxError):
        return error.with_traceback(None)
    return BackendUnavailable(f"a supervisor process failed: {type(error).__name__}: {error}")


class _Programs:
    """Built once each. Those that were used last are kept: an evaluation has one for each of a million samples."""

    def __init__(self, build: Callable[[ExecRequest], Any]) -> None:
        self._build = build
        self._lock = threading.Lock()
        self._builds: OrderedDict[bytes, _Build] = OrderedDict()

    @contextmanager
    def use(self, program: bytes, run: Run) -> Iterator[Any]:
        """`program` is a pickled request. While one is in use, it is not closed."""
        with self._lock:
            if program not in self._builds or self._builds[program].may_be_repeated:
                request = pickle.loads(program)  # noqa: S301  # of the program that started us
                self._builds[program] = _Build(partial(self._build, request))
            self._builds.move_to_end(program)
            build = self._builds[program]
            build.users += 1
        try:
            yield build.result(run)
        finally:
            with self._lock:
                build.users -= 1
                surplus = len(self._builds) - _MOST_PROGRAMS
                idle = [key for key, build in self._builds.items() if build.is_idle] if surplus > 0 else []
                closing = [self._builds.pop(key) for key in idle[:surplus]]
            for each in closing:
                each.close()

    def close(self) -> None:
        """Runs and builds in progress end with the backend."""
        with self._lock:
            for build in self._builds.values():
                build.close()


class _Build:
    """In progress in a thread of its own, so that cancelling a run does not end it; or done."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self.users = 0
        self._changed = threading.Condition()
        self._program: Any = None
        self._error: Exception | None = None
        worker_threads.start(partial(self._carry_out, build))

    def _carry_out(self, build: Callable[[], Any]) -> Callable[[], None]:
        try:
            self._program = build()
        except Exception as error:
            self._error = error
        return self._wake

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @property
    def is_done(self) -> bool:
        return self._program is not None or self._error is not None

    @property
    def may_be_repeated(self) -> bool:
        """Whether the host failed it, for a reason that may have passed."""
        error = self._error
        if not isinstance(error, SandboxError):
            return error is not None
        return error.fault == "host" and error.retryable

    @property
    def is_idle(self) -> bool:
        return self.is_done and not self.users

    def result(self, run: Run) -> Any:
        """Waits for it. Cancelling the run ends the wait."""
        with run.on_cancel(self._wake), self._changed:
            while not self.is_done and not run.is_cancelled:
                self._changed.wait()
        run.check()
        if self._error is not None:
            raise self._error
        return self._program

    def close(self) -> None:
        if self._program is not None:
            self._program.close()
