"""Workers inside the native process cage, where the host has one: a bug of the runtime is then still caged."""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

from warmcell.backends.wasm.run_request import Directories, Directory
from warmcell.cage.plan import Bind, Watch, encode
from warmcell.cage.wire import Job
from warmcell.core.errors import EnforcerUnavailable, ExecutionFailed, SandboxError
from warmcell.core.types import MIB, EffectiveLimits
from warmcell.enforcers import probe
from warmcell.enforcers.pinned import pin
from warmcell.languages.config import ProcessConfig
from warmcell.languages.python import find_interpreter
from warmcell.lifetime.ownership import Lock
from warmcell.policy.compile import compile_plan
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import NATIVE, resolve
from warmcell.pool.zygote import DYING_SECONDS, ZygoteKey, ZygoteProcess
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.cgroup_parent import group_parent, host_capabilities
from warmcell.runner.cgroups import GroupLimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:  # its half in C: the rest takes longer to load
    import _signal as signal

#: Where directories of the host appear, by number: their own paths could be where the cage has something else.
_READ_ONLY, _WRITABLE = "/mnt/read", "/mnt/write"
#: For the worker as a whole, runtime included; what a run may use of it is the runtime's to keep.
WORKER_LIMITS = EffectiveLimits(memory_mb=4096, processes=256, open_files=4096, disk_mb=4096)
_READY_SECONDS = 30.0
_REPORT_MS = 5000
_ATTEMPTS = 3


class CagedProcess:
    """A worker in a cell of its own, which was ordered and has yet to `begin`. `kill` may be called from any thread,
    at any time, more than once.
    """

    def __init__(self, cell: Cell, zygote: ZygoteProcess) -> None:
        self._cell = cell
        self._zygote = zygote
        self._places: dict[Directory, str] = {}
        self._lock = Lock()
        self._has_begun = self._is_killed = False
        self.is_running = True
        self.pid = 0

    def begin(self) -> None:
        """`CellLost`: its zygote was dying, and is not asked again."""
        try:
            self._cell.await_ready(_READY_SECONDS)
            self._cell.start(Job("python", (), {}, "/code", {}))
            self.pid = self._cell.guest_pid
        except BaseException as error:
            self._close()
            if isinstance(error, CellLost):
                self._zygote.await_death(DYING_SECONDS)
            raise
        with self._lock:
            self._has_begun = True
            if self._is_killed:  # when it was not known yet whom to kill
                self._cell.ask_to_stop()

    def _close(self) -> None:
        self.is_running = False
        with self._lock:
            self._cell.close()

    def kill(self) -> None:
        """Through init, which then still reports how the worker ended if it was dead already."""
        with self._lock:
            self._is_killed = True
            if self._has_begun:
                self._cell.ask_to_stop()

    def wait(self, timeout: float) -> int | None:
        """The exit status (negative for a signal), or None when it is still there after `timeout` seconds."""
        if not self._has_begun:
            self._close()
            return -signal.SIGKILL
        if not self._cell.await_gone(timeout / 2):
            self._cell.kill()
            if not self._cell.await_gone(timeout / 2):
                return None
        # Whoever reaped it says how it ended a moment after it is gone.
        poll = select.poll()
        poll.register(self._cell.status, select.POLLIN)
        with suppress(CellLost, SandboxError, OSError):
            while self._cell.report is None and poll.poll(_REPORT_MS):
                self._cell.hear()
        status = (self._cell.report or {}).get("exit", 9)
        with suppress(OSError):  # without descriptors it cannot be said what the cell used
            self._close()
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def show(self, directories: Directories) -> None:
        """Mounted from outside, by the cage, which from then on watches how much is written to them."""
        for parent, is_writable in ((_READ_ONLY, False), (_WRITABLE, True)):
            chosen = [directory for directory in directories if directory.is_writable == is_writable]
            self._places.update({directory: f"{parent}/{number}" for number, directory in enumerate(chosen)})
        binds = [_bind(*item) for item in self._places.items()]
        self._zygote.attach(self._cell, binds, WORKER_LIMITS.disk_mb * MIB, _READY_SECONDS)

    def place(self, directory: Directory) -> str:
        return self._places[directory]

    def abandon(self) -> None:
        """The cell lets go of itself."""
        self.is_running = False


def _bind(directory: Directory, place: str) -> Bind:
    identity = f"{directory.device}:{directory.inode}"
    return Bind(directory.host_path, place, directory.is_writable, identity, as_owner=True)


@lru_cache(maxsize=1)
def has_cage() -> bool:
    """Whether workers can be caged here; what stands in the way is for `warmcell doctor` to say."""
    try:
        resolve(SandboxPolicy(), (), WORKER_LIMITS, host_capabilities(), NATIVE)
    except EnforcerUnavailable:
        return False
    return True


class CagedLauncher:
    """One zygote for all workers of this process, which are forks of it, as it has loaded all that they need.

    It is replaced when it is gone, or when this is a fork of its owner.
    """

    isolation_class = "wasm+process"
    confines = True

    def __init__(self) -> None:
        self._lock = Lock()
        self._zygote: ZygoteProcess | None = None
        #: Those that were replaced, which end with their workers.
        self._retired: list[ZygoteProcess] = []
        self._running: weakref.WeakSet[CagedProcess] = weakref.WeakSet()
        #: How many workers are being made, which nobody may take the zygote from.
        self._beginning = 0

    def __call__(self, argv: Sequence[str], control: int, read_only: Sequence[str], places: int) -> CagedProcess:
        with self._lock:
            self._beginning += 1
        try:
            return self._begun(argv, control, read_only, places)
        finally:
            with self._lock:
                self._beginning -= 1
            self.rest()  # where it did not begin, or has ended already

    def _begun(self, argv: Sequence[str], control: int, read_only: Sequence[str], places: int) -> CagedProcess:
        plan = self._plan(tuple(read_only), places)
        parent = group_parent()
        group = GroupLimits(WORKER_LIMITS.memory_mb * MIB, WORKER_LIMITS.processes + 1) if parent else None
        for _ in range(_ATTEMPTS):
            zygote = self._living_zygote(packages=argv[-1])
            try:
                cell = zygote.order_cell(plan, parent, group, stdin=control, has_keeper=False, execs=False)
            except CellLost:  # its zygote was dying: another one takes its place
                zygote.await_death(DYING_SECONDS)
                continue
            process = CagedProcess(cell, zygote)
            self._running.add(process)
            return process
        raise ExecutionFailed("the cages of WASM workers end before they can be used")

    def rest(self) -> None:
        """Without workers there is nothing to keep a zygote for."""
        with self._lock:
            is_used = self._beginning or any(process.is_running for process in self._running)
            if is_used or self._zygote is None:
                return
            for zygote in (self._zygote, *self._retired):
                zygote.close()
            self._zygote, self._retired = None, []

    def _plan(self, read_only: tuple[str, ...], places: int) -> str:
        paths = tuple(pin(os.path.realpath(path), path) for path in dict.fromkeys(read_only))
        policy = resolve(SandboxPolicy(), paths, WORKER_LIMITS, host_capabilities(), NATIVE)
        plan = compile_plan(policy, probe.layout(), find_interpreter(ProcessConfig()).runtime_paths)
        empty = [f"{parent}/{number}" for parent in (_READ_ONLY, _WRITABLE) for number in range(places)]
        return encode(
            plan._replace(
                # Directories on the sealed root, for what the worker will be shown to be mounted on.
                files=(*plan.files, *((f"{place}/.empty", "") for place in empty)),
                landlock=(*plan.landlock, (_WRITABLE, True)),
                # The runtime keeps memory limits itself; what is written is watched as soon as there is where to.
                watch=Watch(),
            )
        )

    def _living_zygote(self, packages: str) -> ZygoteProcess:
        with self._lock:
            if self._zygote is None or not self._zygote.is_alive():
                base = find_interpreter(ProcessConfig()).path
                parent = group_parent()
                prefix = parent.prefix if parent else ()
                if self._zygote is not None:
                    self._zygote.retire()
                    self._retired.append(self._zygote)
                self._zygote = ZygoteProcess(ZygoteKey(base, "namespaces", NATIVE, packages=packages), prefix)
            return self._zygote
