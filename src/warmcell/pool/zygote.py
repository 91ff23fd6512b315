"""ZygoteProcess: the supervisor's end of one zygote. It starts it, tells it what to make, and ends it."""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Sequence

from warmcell.cage.plan import Bind, encode_binds
from warmcell.cage.wire import receive_packet, send_packet
from warmcell.core.errors import BackendUnavailable, EnforcerFailed, EnforcerUnavailable
from warmcell.core.records import dataclass
from warmcell.lifetime.descriptors import Descriptors, host_failure, told_shortage
from warmcell.lifetime.host_program import NOT_AN_INTERPRETER
from warmcell.lifetime.ownership import own
from warmcell.lifetime.run import RunCancelled
from warmcell.pool.start import first_order, started
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.cgroup_parent import GroupParent
from warmcell.runner.cgroups import GroupLimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any
else:  # their halves in C: the rest takes longer to load
    import _socket as socket

_IN_FLIGHT_SECONDS = 5.0
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)

_SMALL_FILES = 1 << 16

START_SECONDS = 60.0  # a preload such as pandas may take its time
DYING_SECONDS = 0.2  # one that was killed still counts as living for a moment


@dataclass(frozen=True, slots=True)
class ZygoteKey:
    """What makes two zygotes different; backends of one key may share one."""

    interpreter: str
    isolation: str
    enforcer: str
    has_worker: bool = True
    #: Where the package wasmtime is, for a zygote of workers that run WebAssembly.
    packages: str = ""
    with_site: bool = False
    preload: tuple[str, ...] = ()
    #: Whether anything may wait for a run that has not been asked for.
    keeps_spares: bool = False
    #: Whether it is told names of the caller's, of places that its guests see: others' guests are not to find them.
    names_places: bool = False

    @property
    def may_be_shared(self) -> bool:
        """Not where guests share the host's root: the directory of every run is in its memory by name."""
        return self.isolation != "landlock" and not self.names_places

    def first_order(self) -> dict[str, Any]:
        return first_order(
            self.isolation,
            has_worker=self.has_worker,
            packages=self.packages,
            with_site=self.with_site,
            preload=self.preload,
            spares=self.keeps_spares,
        )


def _is_file_size_too_small() -> bool:
    """For the few small files that a cage is made with."""
    import resource

    return 0 <= resource.getrlimit(resource.RLIMIT_FSIZE)[1] < _SMALL_FILES


class ZygoteProcess:
    """Safe to use from many threads. `close` ends the zygote, once the runs that it looks after have ended.

    Made when it is ready to serve; `RunCancelled` when `cancelled` is readable before that. In a fork it is dead.
    """

    def __init__(self, key: ZygoteKey, prefix: tuple[str, ...] = (), cancelled: int = -1) -> None:
        self.key = key
        self._lock = threading.Lock()
        #: Where the process may go on with what it has, and makes nothing any more.
        self._is_lost = False
        try:
            start = started(key.interpreter, prefix, key.first_order())
        except (FileNotFoundError, PermissionError) as error:
            raise BackendUnavailable(f"could not start {key.interpreter}: {error.strerror}") from None
        except OSError as error:
            raise host_failure(error, f"start {key.interpreter}") from None
        self._control, self._process = start.control, start
        own(self)
        try:
            self._prepare(cancelled)
        except BaseException:
            self._process.kill()  # it may be in the middle of a preload, and would not hear that it is not needed
            self.close()
            raise

    def _prepare(self, cancelled: int) -> None:
        answer, descriptors = self._answer(cancelled)
        if "pid" in answer:
            self._process.moved(answer["pid"], descriptors[0])
            answer, _ = self._answer(cancelled)
        if "namespaces" in answer:
            answer, _ = self._answer(cancelled)
        if "ready" in answer:
            return
        if "failed" in answer:
            raise self._refusal(*answer["failed"])
        last_words = self._process.last_words()
        if last_words == NOT_AN_INTERPRETER:
            raise BackendUnavailable(
                f"{self.key.interpreter} is no Python interpreter", hint="set ProcessConfig(python_path=...) to one"
            )
        if _is_file_size_too_small():
            raise host_failure(OSError(errno.EFBIG, os.strerror(errno.EFBIG)), f"start {self.key.interpreter}")
        died = EnforcerFailed(self.key.enforcer, f"{self.key.interpreter} died at start: {last_words}")
        raise told_shortage(last_words, f"start {self.key.interpreter}") or died

    def _answer(self, cancelled: int) -> tuple[dict[str, Any], list[int]]:
        if self._process.heard:
            return self._process.heard.pop(0), []
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if cancelled >= 0:
            poll.register(cancelled, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(START_SECONDS * 1000)]
        if cancelled in ready:
            raise RunCancelled
        if not ready:
            raise EnforcerFailed(self.key.enforcer, f"{self.key.interpreter} was not ready after {START_SECONDS:g} s")
        try:
            return receive_packet(self._control)
        except ConnectionResetError:  # it died with our order unread
            return {}, []

    def _refusal(self, step: str, number: int, what: str) -> Exception:
        reason = f": {os.strerror(number)}" if number else ""
        if number in (errno.EAGAIN, errno.ENOMEM, errno.EFBIG):
            return host_failure(OSError(number, os.strerror(number)), step)
        if step == "preload":
            return BackendUnavailable(what, hint="install it for that interpreter, or correct ProcessConfig.preload")
        if step == "create namespaces":
            from warmcell.cage.failure import CageError
            from warmcell.enforcers.refusals import why_no_namespaces

            why = why_no_namespaces(CageError(step, number, what))
            return EnforcerUnavailable(self.key.enforcer, why.what, hint=why.remedy)
        return EnforcerFailed(self.key.enforcer, f"could not {step}: {what}{reason}")

    def order_cell(
        self,
        plan: str,
        group_parent: GroupParent | None,
        limits: GroupLimits | None,
        *,
        stdin: int | None = None,
        has_keeper: bool = True,
        execs: bool = True,
        is_program: bool = False,
        waits: bool = False,
    ) -> Cell:
        """Sends for a cell; the caller waits with `await_ready` and closes it. `CellLost` when the zygote is gone.

        `stdin` is the caller's own descriptor for the guest to have as 0, in place of a pipe. `has_keeper`: its init
        watches over the run. `execs`: its job will be a program, which must be let through where processes are refused.
        `is_program`: it is sure to be one, by its path. `waits`: its job comes later, so it has the time to prepare.
        """
        is_caged = self.key.isolation == "namespaces"
        cell = Cell(self.key.enforcer, has_namespaces=is_caged, has_keeper=has_keeper, stdin=stdin)
        try:
            if group_parent and limits:
                cell.group = group_parent.make_group(f"warmcell-{os.urandom(8).hex()}", limits)
            order = {"plan": plan, "execs": execs, "waits": waits, "program": is_program}
            self._send(order, cell.descriptors_to_send())
        except BaseException:
            cell.close()
            raise
        cell.sent()
        return cell

    def attach(self, cell: Cell, binds: Sequence[Bind], disk_bytes: int, timeout: float) -> None:
        """Shows more of the host to a cell that has its job, at places of its plan; what it writes there is watched."""
        with Descriptors() as owned:
            ours, theirs = owned.socketpair(socket.SOCK_SEQPACKET)
            try:
                self._send({"attach": encode_binds(binds), "cell": cell.number, "disk_bytes": disk_bytes}, [theirs])
                owned.close_only(theirs)
                ours.settimeout(timeout)
                answer, _ = receive_packet(ours)
            except TimeoutError:
                raise EnforcerFailed(self.key.enforcer, f"paths were not attached after {timeout:g} s") from None
            finally:
                owned.close()
        if "failed" in answer:
            raise self._refusal(*answer["failed"])
        if "attached" not in answer:
            raise CellLost("the zygote is gone")

    def _send(self, order: dict[str, Any], descriptors: list[int]) -> None:
        deadline = time.monotonic() + _IN_FLIGHT_SECONDS
        while True:
            try:
                with self._lock:
                    send_packet(self._control, order, descriptors)
                return
            except OSError as error:
                if error.errno in _GONE:
                    raise CellLost(f"the zygote is gone: {error}") from None
                # Descriptors that were sent and not yet received count against the user's limit: they get fewer.
                if error.errno != errno.ETOOMANYREFS or time.monotonic() > deadline:
                    raise
            time.sleep(0.005)

    def is_alive(self) -> bool:
        """Whether it makes cells."""
        return not self._is_lost and self._process.is_running()

    def has_ended(self) -> bool:
        return not self._process.is_running()

    def await_death(self, seconds: float) -> None:
        """Where cells are lost the zygote may be dying: asking it again before it is dead would lose the next one.

        Its manager, which lets go of us then, goes on for as long as it has guests.
        """
        self._is_lost = self._process.await_end_or_deafness(seconds)

    @property
    def pid(self) -> int:
        return self._process.pid

    def retire(self) -> None:
        """Its control channel ends, and so does it, once the runs that it still looks after have ended."""
        self._process.let_go()

    def close(self) -> None:
        """Retires it and waits, though not forever."""
        self.retire()
        if not self._process.await_end(5):
            self._process.kill()
            self._process.await_end(5)

    def abandon(self) -> None:
        """In a forked copy: for the copy it is dead, and the original goes on using it."""
        self._lock = threading.Lock()
