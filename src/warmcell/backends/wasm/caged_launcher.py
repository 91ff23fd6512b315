"""Workers inside the native process cage, where the host has one: a bug of the runtime is then still caged."""

from __future__ import annotations

import os
import socket
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

from warmcell.cage.linux.cgroups import GroupLimits
from warmcell.cage.plan import encode
from warmcell.cage.wire import Job
from warmcell.core.errors import EnforcerUnavailable, SandboxError
from warmcell.core.types import MIB, EffectiveLimits
from warmcell.enforcers import probe
from warmcell.enforcers.pinned import pin
from warmcell.languages.config import ProcessConfig
from warmcell.languages.python import find_interpreter
from warmcell.policy.compile import compile_plan
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import NATIVE, resolve
from warmcell.pool.zygote import ZygoteKey, ZygoteProcess
from warmcell.runner.cell import Cell, CellLost

#: For the worker as a whole, runtime included; what a run may use of it is the runtime's to keep.
WORKER_LIMITS = EffectiveLimits(memory_mb=4096, processes=256, open_files=4096, disk_mb=4096)
_READY_SECONDS = 30.0


class CagedProcess:
    """A worker in a cell of its own. `kill` may be called from any thread, at any time, more than once."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._lock = threading.Lock()
        self.is_running = True
        self.pid = _child_of(cell.pid) or cell.pid

    def kill(self) -> None:
        """Through init, which then still reports how the worker ended if it was dead already."""
        with self._lock:
            self._cell.ask_to_stop()

    def wait(self, timeout: float) -> int | None:
        """The exit status (negative for a signal), or None when it is still there after `timeout` seconds."""
        if not self._cell.await_gone(timeout / 2):
            self._cell.kill()
            if not self._cell.await_gone(timeout / 2):
                return None
        self._cell.status.setblocking(False)
        with suppress(CellLost, OSError):
            while self._cell.report is None:
                self._cell.hear()
        status = (self._cell.report or {}).get("exit", 9)
        with self._lock:
            self._cell.close()
        self.is_running = False
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _child_of(pid: int) -> int | None:
    """The worker itself, as this host numbers it: the only child of its cell's init."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return int(file.read().split()[0])
    except (OSError, IndexError, ValueError):
        return None


@lru_cache(maxsize=1)
def has_cage() -> bool:
    """Whether workers can be caged here; what stands in the way is for `warmcell doctor` to say."""
    try:
        resolve(SandboxPolicy(), (), WORKER_LIMITS, probe.measure(), NATIVE)
    except EnforcerUnavailable:
        return False
    return True


class CagedLauncher:
    """One zygote for all workers of this process; replaced when it is gone or when this is a fork of its owner."""

    isolation_class = "wasm+process"
    confines_paths = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._zygote: ZygoteProcess | None = None
        self._running: weakref.WeakSet[CagedProcess] = weakref.WeakSet()

    def __call__(
        self, argv: Sequence[str], control: socket.socket, read_only: Sequence[str], writable: Sequence[str]
    ) -> CagedProcess:
        plan = self._plan(tuple(read_only), tuple(writable))
        home = probe.cgroup_home()
        group = GroupLimits(WORKER_LIMITS.memory_mb * MIB, WORKER_LIMITS.processes + 1) if home else None
        cell = self._living_zygote().order_cell(plan, home, group, stdin=control.fileno())
        try:
            cell.await_ready(_READY_SECONDS)
            cell.start(Job("exec", tuple(argv), {}, "/code", {}))
        except (SandboxError, CellLost) as error:
            cell.close()
            raise OSError(str(error)) from error
        process = CagedProcess(cell)
        self._running.add(process)
        return process

    def rest(self) -> None:
        """A pool was closed: without workers there is nothing to keep a zygote for."""
        with self._lock:
            if self._zygote is not None and not any(process.is_running for process in self._running):
                self._zygote.close()
                self._zygote = None

    def _plan(self, read_only: tuple[str, ...], writable: tuple[str, ...]) -> str:
        paths = tuple(
            pin(os.path.realpath(path), path, is_writable)
            for group, is_writable in ((read_only, False), (writable, True))
            for path in dict.fromkeys(group)
        )
        policy = resolve(SandboxPolicy(), paths, WORKER_LIMITS, probe.measure(), NATIVE)
        interpreter = find_interpreter(ProcessConfig(python_path=sys.executable))
        plan = compile_plan(policy, probe.layout(), interpreter.runtime_paths)
        # The runtime keeps memory limits itself, and seals memfds, which those that init serves cannot be.
        return encode(plan._replace(watch=plan.watch._replace(memory_bytes=0)))

    def _living_zygote(self) -> ZygoteProcess:
        with self._lock:
            if self._zygote is None or not self._zygote.is_alive():
                base = find_interpreter(ProcessConfig()).path
                home = probe.cgroup_home()
                prefix = home.prefix if home else ()
                self._zygote = ZygoteProcess(ZygoteKey(base, "namespaces", NATIVE, has_worker=False), prefix)
            return self._zygote
