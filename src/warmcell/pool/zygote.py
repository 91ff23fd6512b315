"""ZygoteProcess: the supervisor's end of one zygote. Starts it, orders cells from it, and ends it."""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Sequence

from warmcell.cage.plan import Bind, encode_binds
from warmcell.cage.wire import GuestJob, receive_packet, send_packet
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
    from contextlib import AbstractContextManager
    from typing import Any, Protocol

    from warmcell.cage.plan import Sources
else:  # the C modules, which load faster
    import _socket as socket

    Protocol = object

_IN_FLIGHT_SECONDS = 5.0
_DISCONNECTED = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)
#: A cage is built with files of at most this size.
_BUILD_FILE_BYTES = 1 << 16
START_SECONDS = 60.0  # preloading pandas, say, takes long on a slow disk
DYING_SECONDS = 0.2  # a killed process looks alive for a moment


@dataclass(frozen=True, slots=True)
class ZygoteKey:
    """What distinguishes zygotes. Backends with the same key may share one."""

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
    #: Whether its guests share the host's network; otherwise each has its own.
    has_host_network: bool = False
    #: Additional library directories for the loader, which reads them when the process starts.
    library_path: str = ""

    @property
    def may_be_shared(self) -> bool:
        """False if guests share the host's root: the zygote's memory then contains the path of every run."""
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
    """A command prefix that sets the loader's path."""
    if not key.library_path:
        return ()
    paths = ":".join(filter(None, (key.library_path, os.environ.get(LOADER_PATH))))
    return ("/usr/bin/env", f"{LOADER_PATH}={paths}")


def _is_file_size_too_small() -> bool:
    """Whether RLIMIT_FSIZE is too small for the files that a cage is built with."""
    import resource

    return 0 <= resource.getrlimit(resource.RLIMIT_FSIZE)[1] < _BUILD_FILE_BYTES


class Overlay(Protocol):
    """A mounted overlay that is shown to many cells."""

    @property
    def upper(self) -> str:
        """The host directory that writes go to."""
        ...

    @property
    def devices(self) -> tuple[int, ...]:
        """The device numbers that stat() reports for its files and directories."""
        ...

    def copy_tree(self) -> AbstractContextManager[int]:
        """A detached copy for one cell, closed after the block."""
        ...


@dataclass(frozen=True, slots=True)
class CellKind:
    """What distinguishes cells: unused cells of one kind are interchangeable."""

    zygote: ZygoteKey
    plan: str
    group: GroupLimits | None
    #: Whether such cells are kept warm.
    is_pooled: bool = True
    #: Whether its init watches the run.
    has_keeper: bool = True
    #: Whether its job may exec a program, which must be allowed where new processes are refused.
    may_exec: bool = True
    #: Whether the job is certain to exec, by its path.
    is_program: bool = False
    #: Sent to the cell when it is ready, for programs that start first and get their code later.
    prelude: GuestJob | None = None
    #: The caller's descriptor for the guest's stdin, instead of a pipe; such a cell is never pooled.
    stdin: int | None = None
    #: Whether the plan contains path names of the caller, which guests of other pools must not find.
    has_private_paths: bool = False
    #: For the plan's given bind, if it has one.
    overlay: Overlay | None = None
    #: The sources of the caller's paths, if the plan does not contain them.
    sources: Sources = ()

    def __hash__(self) -> int:
        return hash((self.plan, self.may_exec, self.is_program))  # the fields in which nearly all differ


class ZygoteProcess:
    """A zygote and its manager, as the supervisor sees them. Thread-safe; unusable in a fork of the program.

    The constructor returns when the zygote is ready, or raises `RunCancelled` if `cancelled` becomes readable before.
    `close` ends the zygote after its runs.
    """

    def __init__(self, key: ZygoteKey, prefix: tuple[str, ...] = (), cancelled: int = -1) -> None:
        self.key = key
        self._lock = threading.Lock()
        #: Whether it makes no more cells. Its guests may still run.
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
            self._process.kill()  # during a preload it does not notice that its channel was closed
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
        last_error = self._process.read_last_error()
        if last_error == NOT_AN_INTERPRETER:
            raise BackendUnavailable(
                f"{self.key.interpreter} is not a Python interpreter", hint="set ProcessConfig(python_path=...) to one"
            )
        if _is_file_size_too_small():
            raise host_failure(OSError(errno.EFBIG, os.strerror(errno.EFBIG)), f"start {self.key.interpreter}")
        died = EnforcerFailed(self.key.enforcer, f"{self.key.interpreter} died at start: {last_error}")
        raise shortage_from_message(last_error, f"start {self.key.interpreter}") or died

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
        except ConnectionResetError:  # it died before it read its order
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
        kind: CellKind,
        group_parent: GroupParent | None = None,
        *,
        waits: bool = False,
        trees: Sequence[int] = (),
        twin: int = 0,
    ) -> Cell:
        """Orders a cell; the caller calls `await_ready` and closes it. Raises `CellLost` if the zygote is gone.

        `waits`: its job comes later, so there is time to prepare. `trees` are the mount trees of the plan's given
        binds. `twin` is the number of the twin that makes the cell, forked from the zygote at the first order.
        """
        is_caged = self.key.isolation == "namespaces"
        cell = Cell(self.key.enforcer, has_namespaces=is_caged, has_keeper=kind.has_keeper, stdin=kind.stdin)
        try:
            if group_parent and kind.group:
                cell.group = group_parent.make_group(f"warmcell-{os.urandom(8).hex()}", kind.group)
            order: dict[str, Any] = {
                "plan": kind.plan,
                "may_exec": kind.may_exec,
                "waits": waits,
                "program": kind.is_program,
            }
            if kind.sources:
                order["sources"] = kind.sources
            if twin:
                order["twin"] = twin
            self._send(order, [*cell.descriptors_to_send(), *trees])
        except BaseException:
            cell.close()
            raise
        cell.close_their_ends()
        return cell

    def attach(self, cell: Cell, binds: Sequence[Bind], disk_bytes: int, timeout: float) -> None:
        """Mounts more host paths into a running cell, at mount points of its plan; writes there count as disk usage."""
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
        """Ends a twin that is not used any more. If this cannot be sent, the twin ends with its zygote."""
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
                if error.errno in _DISCONNECTED:
                    raise CellLost(f"the zygote is gone: {error}") from None
                # Sent but not yet received descriptors count against the user's limit: wait until some are received.
                if error.errno != errno.ETOOMANYREFS or time.monotonic() > deadline:
                    raise
            time.sleep(0.005)

    def is_alive(self) -> bool:
        """Whether it still makes cells."""
        return not self.is_lost and self._process.is_running()

    def has_ended(self) -> bool:
        return not self._process.is_running()

    def await_death(self, seconds: float) -> None:
        """Called when a cell was lost: its zygote may be dying, and would lose the next cell as well.

        If it is dying, its manager closes our channel and exits after its guests.
        """
        self.is_lost = self._process.await_end_or_hangup(seconds)

    @property
    def pid(self) -> int:
        return self._process.pid

    def retire(self) -> None:
        """Closes its control channel, so that it exits after its runs."""
        self._process.close_channels()

    def close(self) -> None:
        """Retires it and waits for a bounded time."""
        self.retire()
        if not self._process.await_end(5):
            self._process.kill()
            self._process.await_end(5)

    def abandon(self) -> None:
        self._lock = threading.Lock()
