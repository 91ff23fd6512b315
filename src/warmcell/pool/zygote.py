"""ZygoteProcess: the supervisor's end of one zygote. It starts it, tells it what to make, and ends it."""

from __future__ import annotations

import os
import select
import threading

import warmcell.guest
from warmcell.cage.linux.cgroups import Group, GroupLimits, Home
from warmcell.cage.wire import receive_packet, send_packet
from warmcell.core.errors import BackendUnavailable, EnforcerFailed, EnforcerUnavailable
from warmcell.core.records import dataclass
from warmcell.lifetime.ownership import own
from warmcell.pool.start import started
from warmcell.runner.cell import Cell, CellLost

PYTHON_WORKER = os.path.join(warmcell.guest.__path__[0], "python_worker.py")

_START_TIMEOUT = 60.0  # a preload such as pandas may take its time


@dataclass(frozen=True, slots=True)
class ZygoteKey:
    """What makes two zygotes different."""

    interpreter: str
    isolation: str
    enforcer: str
    has_worker: bool = True
    with_site: bool = False
    preload: tuple[str, ...] = ()
    #: Whether anything may wait for a run that has not been asked for.
    keeps_spares: bool = False


class ZygoteProcess:
    """Safe to use from many threads. `close` ends the zygote, once the runs that it looks after have ended."""

    def __init__(self, key: ZygoteKey, prefix: tuple[str, ...] = ()) -> None:
        self.key = key
        self._lock = threading.Lock()
        try:
            start = started(key.interpreter, prefix)
        except OSError as error:
            raise BackendUnavailable(f"could not start {key.interpreter}: {error.strerror}") from None
        self._control, self._process = start.control, start
        own(self)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        order = {
            "isolation": self.key.isolation,
            "worker": PYTHON_WORKER if self.key.has_worker else "",
            "site": self.key.with_site,
            "preload": list(self.key.preload),
            "spares": self.key.keeps_spares,
        }
        send_packet(self._control, order)
        if not self._is_readable(_START_TIMEOUT):
            raise EnforcerFailed(self.key.enforcer, f"{self.key.interpreter} was not ready after {_START_TIMEOUT:g} s")
        answer, _ = receive_packet(self._control)
        if "ready" in answer:
            return
        if "failed" in answer:
            raise self._refusal(*answer["failed"])
        raise EnforcerFailed(self.key.enforcer, f"{self.key.interpreter} died at start: {self._process.last_words()}")

    def _is_readable(self, timeout: float) -> bool:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def _refusal(self, step: str, errno: int, what: str) -> Exception:
        reason = f": {os.strerror(errno)}" if errno else ""
        if step == "preload":
            return BackendUnavailable(what, hint="install it for that interpreter, or correct ProcessConfig.preload")
        if step == "create namespaces":
            from warmcell.enforcers.probe import remedy

            return EnforcerUnavailable(self.key.enforcer, f"user namespaces do not work here{reason}", hint=remedy())
        return EnforcerFailed(self.key.enforcer, f"could not {step}: {what}{reason}")

    def order_cell(
        self,
        plan: str,
        home: Home | None,
        limits: GroupLimits | None,
        *,
        stdin: int | None = None,
        has_keeper: bool = True,
        execs: bool = True,
        waits: bool = False,
    ) -> Cell:
        """Sends for a cell; the caller waits with `await_ready`. Raises `CellLost` when the zygote is gone.

        `stdin` is the caller's own descriptor for the guest to have as 0, in place of a pipe. `has_keeper`: its init
        watches over the run. `execs`: its job will be a program, which must be let through where processes are refused.
        `waits`: its job comes later, so it has the time to prepare for it.
        """
        group = Group(home, f"warmcell-{os.urandom(8).hex()}", limits) if home and limits else None
        is_caged = self.key.isolation == "namespaces"
        cell = Cell(self.key.enforcer, group, has_namespaces=is_caged, has_keeper=has_keeper, stdin=stdin)
        order = {"plan": plan, "sleeps": not has_keeper, "execs": execs, "waits": waits}
        try:
            with self._lock:
                send_packet(self._control, order, cell.descriptors_to_send())
        except OSError as error:
            cell.close()
            raise CellLost(f"the zygote is gone: {error}") from None
        cell.sent()
        return cell

    def is_alive(self) -> bool:
        return self._process.is_running()

    def await_death(self, seconds: float) -> None:
        """Where cells are lost the zygote may be dying: asking it again before it is dead would lose the next one."""
        self._process.await_end(seconds)

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
