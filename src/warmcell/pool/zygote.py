"""ZygoteProcess: the supervisor's end of one zygote. Starts it, orders cells from it, and ends it."""

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
from warmcell.core.light import suppress
from warmcell.core.records import dataclass
from warmcell.lifetime.descriptors import Descriptors, host_failure, shortage_from_message
from warmcell.lifetime.host_program import NOT_AN_INTERPRETER
from warmcell.lifetime.ownership import own
from warmcell.lifetime.run import RunCancelled
from warmcell.pool.manager_process import acquire_manager, first_order
from warmcell.pool.prestarted_manager import LOADER_PATH
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.cgroup_parent import GroupParent
from warmcell.runner.cgroups import GroupLimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from warmcell.cage.plan import Sources
else:  # the C modules, which load faster
    import _socket as socket

_IN_FLIGHT_SECONDS = 5.0
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)

_SMALL_FILES = 1 << 16

START_SECONDS = 60.0  # a preload such as pandas may take its time
DYING_SECONDS = 0.2  # a killed process counts as alive for a moment


@dataclass(frozen=True, slots=True)
class ZygoteKey:
    """What distinguishes zygotes; backends with the same key may share one."""

    interpreter: str
    isolation: str
    enforcer: str
    has_worker: bool = True
    #: The directory of the wasmtime package, for a zygote of WebAssembly workers.
    packages: str = ""
    with_site: bool = False
    preload: tuple[str, ...] = ()
    #: Whether cells may be kept warm.
    keeps_spares: bool = False
    #: Whether its guests have the host's network; else each has one of its own.
    has_host_network: bool = False
    #: Directories in which its guests' loader looks for libraries besides the usual ones: it reads them at the start.
    library_path: str = ""

    @property
    def may_be_shared(self) -> bool:
        """Not if guests share the host's root: its memory then has the name of every run's directory."""
        return self.isolation != "landlock"

    def first_order(self) -> dict[str, Any]:
        return first_order(
            self.isolation,
            has_worker=self.has_worker,
            packages=self.packages,
            with_site=self.with_site,
            preload=self.preload,
            spares=self.keeps_spares,
            host_network=self.has_host_network,
        )


def _loader_prefix(key: ZygoteKey) -> tuple[str, ...]:
    """A command that sets the loader's path and becomes the next one."""
    if not key.library_path:
        return ()
    paths = ":".join(filter(None, (key.library_path, os.environ.get(LOADER_PATH))))
    return ("/usr/bin/env", f"{LOADER_PATH}={paths}")


def _is_file_size_too_small() -> bool:
    """Whether RLIMIT_FSIZE is too small for the files that a cage is built with."""
    import resource

    return 0 <= resource.getrlimit(resource.RLIMIT_FSIZE)[1] < _SMALL_FILES


class ZygoteProcess:
    """Safe from many threads. `close` ends the zygote after the runs that it looks after.

    Constructed when it is ready to serve; raises `RunCancelled` if `cancelled` becomes readable before. Dead in a fork.
    """

    def __init__(self, key: ZygoteKey, prefix: tuple[str, ...] = (), cancelled: int = -1) -> None:
        self.key = key
        self._lock = threading.Lock()
        #: The process may go on with its guests but makes no more cells.
        self.is_lost = False
        try:
            start = acquire_manager(key.interpreter, (*prefix, *_loader_prefix(key)), key.first_order())
        except (FileNotFoundError, PermissionError) as error:
            raise BackendUnavailable(f"could not start {key.interpreter}: {error.strerror}") from None
        except OSError as error:
            raise host_failure(error, f"start {key.interpreter}") from None
        self._control, self._process = start.control, start
        own(self)
        try:
            self._prepare(cancelled)
        except BaseException:
            self._process.kill()  # in the middle of a preload it would not notice that its channel was closed
            self.close()
            raise

    def _prepare(self, cancelled: int) -> None:
        answer, descriptors = self._answer(cancelled)
        if "pid" in answer:
            self._process.switch_to(answer["pid"], descriptors[0])
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
                f"{self.key.interpreter} is not a Python interpreter", hint="set ProcessConfig(python_path=...) to one"
            )
        if _is_file_size_too_small():
            raise host_failure(OSError(errno.EFBIG, os.strerror(errno.EFBIG)), f"start {self.key.interpreter}")
        died = EnforcerFailed(self.key.enforcer, f"{self.key.interpreter} died at start: {last_words}")
        raise shortage_from_message(last_words, f"start {self.key.interpreter}") or died

    def _answer(self, cancelled: int) -> tuple[dict[str, Any], list[int]]:
        if self._process.unread:
            return self._process.unread.pop(0), []
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
        except ConnectionResetError:  # it died before it read our order
            return {}, []

    def _refusal(self, step: str, number: int, what: str) -> Exception:
        reason = f": {os.strerror(number)}" if number else ""
        if number in (errno.EAGAIN, errno.ENOMEM, errno.EFBIG):
            return host_failure(OSError(number, os.strerror(number)), step)
        if step == "preload":
            return BackendUnavailable(what, hint="install it for that interpreter, or correct ProcessConfig.preload")
        if step == "preload without threads":
            hint = "leave it out of ProcessConfig.preload: each guest can import it itself"
            return BackendUnavailable(
                f"cannot preload: {what}, and guests, being forks, would not have them", hint=hint
            )
        if step == "preload without a GPU":
            hint = "import it without using the GPU: each guest makes a context of its own"
            return BackendUnavailable(f"cannot preload: {what}, and a GPU context does not survive a fork", hint=hint)
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
        trees: Sequence[int] = (),
        twin: int = 0,
        sources: Sources = (),
    ) -> Cell:
        """Orders a cell; the caller calls `await_ready` and closes it. `CellLost` if the zygote is gone.

        `stdin` is the caller's descriptor for the guest's stdin, in place of a pipe. `has_keeper`: its init watches the
        run. `execs`: its job execs a program, which must be allowed where processes are refused. `is_program`: it is
        certain to exec, by its path. `waits`: its job comes later, so there is time to prepare. `trees` are the mount
        trees of the plan's given binds. `twin` is the number of a twin of the zygote, which is made for it if it does
        not exist: the plan contains path names of the caller's own, which guests of other pools must not find.
        `sources` are those of the caller's paths, if the plan is without them.
        """
        is_caged = self.key.isolation == "namespaces"
        cell = Cell(self.key.enforcer, has_namespaces=is_caged, has_keeper=has_keeper, stdin=stdin)
        try:
            if group_parent and limits:
                cell.group = group_parent.make_group(f"warmcell-{os.urandom(8).hex()}", limits)
            order: dict[str, Any] = {"plan": plan, "execs": execs, "waits": waits, "program": is_program}
            if sources:
                order["sources"] = sources
            if twin:
                order["twin"] = twin
            self._send(order, [*cell.descriptors_to_send(), *trees])
        except BaseException:
            cell.close()
            raise
        cell.close_their_ends()
        return cell

    def attach(self, cell: Cell, binds: Sequence[Bind], disk_bytes: int, timeout: float) -> None:
        """Mounts more host paths into a cell that has its job, at places of its plan; writes there are measured."""
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

    def end_twin(self, number: int) -> None:
        """No more cells will be ordered from that twin. If this cannot be sent, it ends with its zygote."""
        with self._lock, suppress(OSError):
            send_packet(self._control, {"end_twin": number}, flags=socket.MSG_DONTWAIT)

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
                # Descriptors in flight count against the user's limit; wait until some are received.
                if error.errno != errno.ETOOMANYREFS or time.monotonic() > deadline:
                    raise
            time.sleep(0.005)

    def is_alive(self) -> bool:
        """Whether it still makes cells."""
        return not self.is_lost and self._process.is_running()

    def has_ended(self) -> bool:
        return not self._process.is_running()

    def await_death(self, seconds: float) -> None:
        """Where cells are lost the zygote may be dying: another order before it is dead would lose the next cell.

        Its manager then closes our channel and goes on as long as it has guests.
        """
        self.is_lost = self._process.await_end_or_deafness(seconds)

    @property
    def pid(self) -> int:
        return self._process.pid

    def retire(self) -> None:
        """Closes its control channel, so that it exits after the runs that it looks after."""
        self._process.let_go()

    def close(self) -> None:
        """Retires it and waits for a bounded time."""
        self.retire()
        if not self._process.await_end(5):
            self._process.kill()
            self._process.await_end(5)

    def abandon(self) -> None:
        """In a forked copy it is dead; the original keeps using it."""
        self._lock = threading.Lock()
