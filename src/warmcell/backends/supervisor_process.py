"""One supervisor process, seen from the program that started it, and those that wait for the next batch.

Requests and results are pickled: both ends are ours, and guest output is only bytes in them.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, cast

from warmcell.backends.supervisor_service import READY, frame, unframe
from warmcell.core.errors import BackendUnavailable, SandboxError
from warmcell.core.types import ExecRequest, ExecResult
from warmcell.lifetime.descriptors import Descriptors, host_failure
from warmcell.lifetime.host_program import own_interpreter, start_daemon
from warmcell.lifetime.ownership import own, own_until_exit

_END_SECONDS = 10.0
#: How long supervisors wait for another batch.
_KEPT_SECONDS = 5.0
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    " from warmcell.backends.supervisor_service import serve; serve(int(sys.argv[1]))"
)
#: Makes a backend in another process; can be pickled.
BackendFactory = Callable[[], Any]


def death() -> SandboxError:
    return BackendUnavailable("a supervisor process died", hint="run it again; its output on stderr says why")


class SupervisorProcess(asyncio.Protocol):
    """Starts with its first connection to an event loop. Between two loops it is disconnected; nothing is lost then."""

    def __init__(self, factory: bytes) -> None:
        """`factory` is a framed `BackendFactory`."""
        self._factory = factory
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        #: For the event loop, which closes it.
        self._loops_copy: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._numbers = count()
        #: Requests without an answer yet; more than there are in `waiting` after impatient cancellations.
        self._unanswered = 0
        self.waiting: dict[int, asyncio.Future[ExecResult]] = {}
        #: Cancelled runs that have not ended in time. Killing the process would end the runs of others as well.
        self._overdue: set[int] = set()
        self.is_ready = False
        own(self)

    def abandon(self) -> None:
        """In a fork: closes its copies of the connection, so that the supervisor notices the end of the program."""
        for copy in (self._socket, self._loops_copy):
            if copy is not None and copy.fileno() >= 0:
                os.close(copy.detach())
        self._transport = None

    async def connect(self) -> None:
        """To the running event loop."""
        #: Set when it is ready or gone.
        self.settled = asyncio.Event()
        self._can_write = asyncio.Event()
        self._can_write.set()
        is_new = self._process is None
        try:
            if self._socket is None:
                self._socket = self._start()
            copy = self._loops_copy = self._socket.dup()
        except OSError as error:
            raise host_failure(error, "start a supervisor process") from error
        copy.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=copy)
        assert self._transport is not None
        if is_new:
            self._transport.write(self._factory)
        if self.is_ready:
            self.settled.set()

    def _start(self) -> socket.socket:
        with Descriptors() as owned:
            ours, theirs = owned.socketpair(socket.SOCK_STREAM)
            command = [own_interpreter(), "-c", _BOOT, str(theirs), json.dumps(sys.path)]
            # Its own session: Ctrl-C is for the caller, which then cancels the runs.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs], start_new_session=True
            )
            owned.close_only(theirs)
            return socket.socket(fileno=owned.give(ours.detach()))

    # Called by the event loop:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        for message in unframe(self._received):
            self._take(*message)

    def _take(self, number: int, result: ExecResult | None, error: BaseException | None) -> None:
        if number == READY:
            self.is_ready = True
            self.settled.set()
            return
        self._unanswered -= 1
        self._overdue.discard(number)
        answer = self.waiting.get(number)
        if answer is None or answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(cast(ExecResult, result))

    def connection_lost(self, error: BaseException | None) -> None:
        self._transport = None
        for answer in self.waiting.values():
            if not answer.done():
                answer.set_exception(death())
        self.settled.set()
        self._can_write.set()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    # Called by the batch:

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    @property
    def may_run(self) -> bool:
        """Whether it should get further runs: it is there, and it ends those that are cancelled."""
        return self.is_connected and not self._overdue

    @property
    def is_idle(self) -> bool:
        """Whether it can be disconnected and connected again."""
        return self.is_connected and not self._unanswered

    async def run(self, request: ExecRequest, program: bytes | None) -> ExecResult:
        """`program` is a pickled request to build. Cancelling it ends the run before the cancellation is raised.

        If that takes too long, the process is killed as soon as no other caller waits for a run of it.
        """
        if self._transport is None:
            raise death()
        number = next(self._numbers)
        answer = self.waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(frame((number, pickle.dumps(request), program)))
            self._unanswered += 1
            await self._can_write.wait()
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if self._transport is not None:
                self._transport.write(frame((number, None, None)))
            done, _ = await asyncio.wait([answer], timeout=_END_SECONDS)
            if done:
                answer.exception()  # retrieved, so that asyncio does not log it
            else:
                self._overdue.add(number)
            raise
        finally:
            self.waiting.pop(number, None)
            if self._overdue and not self.waiting:
                self._kill()

    def disconnect(self) -> None:
        """From the event loop. What it sends meanwhile is read after the next `connect`."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.set_protocol(asyncio.Protocol())  # which does not take this for the supervisor's death
            transport.close()

    def hang_up(self) -> None:
        """Closes the connection; the supervisor then ends its runs and exits."""
        if self._transport is not None:
            self._transport.close()
        for copy in (self._socket, self._loops_copy if self._transport is None else None):
            if copy is not None:
                copy.close()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def join(self) -> None:
        """After `hang_up`: waits until the process has exited, or kills it."""
        if self._process is None:
            return
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)


def end_all(members: Sequence[SupervisorProcess]) -> None:
    """Returns when they have exited."""
    for member in members:
        member.hang_up()
    for member in members:
        member.join()


class IdleSupervisors:
    """Of one backend: supervisors that wait a few seconds for its next batch, which need not start them then."""

    def __init__(self) -> None:
        self._is_closed = False
        self.abandon()
        own_until_exit(self)

    def abandon(self) -> None:
        """A fork has none."""
        self._changed = threading.Condition()
        self._members: list[SupervisorProcess] = []
        self._kept_at = 0.0
        self._has_thread = False

    def take(self, most: int) -> list[SupervisorProcess]:
        with self._changed:
            alive = [member for member in self._members if member.is_alive]
            dead = [member for member in self._members if member not in alive]
            taken, self._members = alive[:most], alive[most:]
        end_all(dead)
        return taken

    def keep(self, members: Sequence[SupervisorProcess]) -> bool:
        """Whether they are kept. They are disconnected, and there is one batch of them at most."""
        with self._changed:
            if self._is_closed or self._members:
                return False
            if not self._has_thread:
                try:
                    start_daemon(self._end_when_idle, name="warmcell-supervisors")
                except SandboxError:
                    return False
                self._has_thread = True
            self._members = list(members)
            self._kept_at = time.monotonic()
            self._changed.notify_all()
            return True

    def _end_when_idle(self) -> None:
        with self._changed:
            while self._members and (left := self._kept_at + _KEPT_SECONDS - time.monotonic()) > 0:
                self._changed.wait(left)
            members, self._members = self._members, []
            self._has_thread = False
        end_all(members)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            members, self._members = self._members, []
            self._changed.notify_all()
        end_all(members)
