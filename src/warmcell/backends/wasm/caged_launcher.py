"""Workers inside the native process cage, which contains bugs of the runtime too."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache

from warmcell.backends.wasm.run_request import HostDirectory, Mounts
from warmcell.cage.plan import Bind, Watch, encode
from warmcell.cage.wire import GuestJob
from warmcell.core.errors import EnforcerUnavailable, SandboxError
from warmcell.core.light import on_error
from warmcell.core.types import MIB, EffectiveLimits
from warmcell.enforcers import probe
from warmcell.enforcers.pin_paths import pin
from warmcell.languages.config import ProcessConfig
from warmcell.languages.python import find_interpreter
from warmcell.lifetime.ownership import Lock, own
from warmcell.lifetime.run import Run
from warmcell.policy.compile import compile_plan
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import NATIVE, resolve
from warmcell.pool.shared_zygotes import ZygoteShare, shared_zygotes
from warmcell.pool.zygote import DYING_SECONDS, CellKind, ZygoteKey, ZygoteProcess
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.cgroup_parent import group_parent, host_capabilities
from warmcell.runner.cgroups import GroupLimits
from warmcell.runner.outcome import REPLACED

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:  # the C half of the module: the rest takes longer to load
    import _signal as signal

#: Host directories are mounted here by number: the cage may use their own paths for something else.
_READ_ONLY, _WRITABLE = "/mnt/read", "/mnt/write"
#: For the whole worker with its runtime. The runtime enforces the limits of each run.
WORKER_LIMITS = EffectiveLimits(memory_mb=4096, processes=256, open_files=4096, disk_mb=4096)
_READY_SECONDS = 30.0
_REPORT_MS = 5000


class CagedProcess:
    """A worker in its own cell, which was ordered and needs `start`."""

    def __init__(self, cell: Cell, zygote: ZygoteProcess, share: ZygoteShare) -> None:
        self._cell, self._zygote = cell, zygote
        #: Left when the cell is closed.
        self._shares = [share]
        self._paths: dict[HostDirectory, str] = {}
        self._lock = Lock()
        self._is_started = self._is_killed = False
        self.pid = 0
        #: What the host replaced in a writable directory although the worker may only read it: its path there, or "".
        self.replaced = ""

    def start(self, run: Run) -> None:
        """Raises `CellLost` if the zygote was dying; the launcher then uses another one."""
        try:
            with run.descriptor() as cancelled:
                self._cell.await_ready(_READY_SECONDS, cancelled)
            self._cell.send_job(GuestJob("python", (), {}, "/code", {}))
            self.pid = self._cell.guest_pid
        except BaseException as error:
            self._close()
            if isinstance(error, CellLost):
                self._zygote.await_death(DYING_SECONDS)
            raise
        with self._lock:
            self._is_started = True
            if self._is_killed:  # before there was a process to kill
                self._cell.ask_to_stop()

    def _close(self) -> None:
        try:
            with self._lock:
                self._cell.close()
        finally:
            if self._shares:
                shared_zygotes.leave(self._shares.pop())

    def kill(self) -> None:
        """Asks init to do it, which still reports the exit status of a worker that was already dead."""
        with self._lock:
            self._is_killed = True
            if self._is_started:
                self._cell.ask_to_stop()

    def wait(self, timeout: float) -> int | None:
        """The exit status (negative for a signal), or None if it is still running after `timeout` seconds."""
        if not self._is_started:
            self._close()
            return -signal.SIGKILL
        if not self._cell.await_end(timeout / 2):
            self._cell.kill()
            if not self._cell.await_end(timeout / 2):
                return None
        # The report of the exit status arrives a moment after the process is gone.
        poll = select.poll()
        poll.register(self._cell.status, select.POLLIN)
        with suppress(CellLost, SandboxError, OSError):
            while self._cell.report is None and poll.poll(_REPORT_MS):
                self._cell.receive_message()
        report = self._cell.report or {}
        status, verdict = report.get("exit", 9), str(report.get("verdict", ""))
        if verdict.startswith(REPLACED):
            place = verdict.removeprefix(f"{REPLACED}{_WRITABLE}/")
            self.replaced = place.partition("/")[2] or place
        with suppress(OSError):  # out of descriptors: the usage of the cell is not read
            self._close()
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def mount(self, directories: Mounts) -> None:
        """The cage mounts them from outside and from then on watches how much is written to them."""
        for parent, is_writable in ((_READ_ONLY, False), (_WRITABLE, True)):
            chosen = [directory for directory in directories if directory.is_writable == is_writable]
            self._paths.update({directory: f"{parent}/{number}" for number, directory in enumerate(chosen)})
        binds = [bind for item in self._paths.items() for bind in _binds(*item)]
        self._zygote.attach(self._cell, binds, WORKER_LIMITS.disk_mb * MIB, _READY_SECONDS)

    def path_of(self, directory: HostDirectory) -> str:
        return self._paths[directory]

    def abandon(self) -> None:
        """The cell abandons itself."""
        self._shares.clear()


def _binds(directory: HostDirectory, path: str) -> Iterator[Bind]:
    """The directory, then what is read-only in it."""
    identity = f"{directory.device}:{directory.inode}"
    yield Bind(directory.host_path, path, directory.is_writable, identity, as_owner=True)
    for item in directory.read_only:
        identity = f"{item.device}:{item.inode}"
        host_path = f"{directory.host_path}/{item.path}"
        yield Bind(host_path, f"{path}/{item.path}", not item.is_end, identity, as_owner=True)


@lru_cache(maxsize=1)
def has_cage() -> bool:
    """Whether workers can be caged on this host; `warmcell doctor` reports why not."""
    try:
        resolve(SandboxPolicy(), (), WORKER_LIMITS, host_capabilities(), NATIVE)
    except EnforcerUnavailable:
        return False
    return True


class CagedLauncher:
    """Forks all workers of this program from one zygote that has loaded everything they need.

    It lives as long as they do, and until `release_idle`. A fork of the program starts another.
    """

    isolation_class = "wasm+process"
    is_confining = True

    def __init__(self) -> None:
        self.abandon()
        own(self)

    def abandon(self) -> None:
        #: Kept for further workers; each worker has a share of its own.
        self._kept: list[ZygoteShare] = []

    def launch(
        self, argv: Sequence[str], control: int, read_only: Sequence[str], mount_slots: int, run: Run
    ) -> CagedProcess:
        """Raises `CellLost` if the zygote was dying: the next launch uses another one.

        Cancelling `run` while it starts a zygote ends that zygote; others that wait for it start another.
        """
        plan = self._plan(tuple(read_only), mount_slots)
        parent = group_parent()
        group = GroupLimits(WORKER_LIMITS.memory_mb * MIB, WORKER_LIMITS.processes + 1) if parent else None
        key = ZygoteKey(find_interpreter(ProcessConfig()).path, "namespaces", NATIVE, packages=argv[-1])
        share = shared_zygotes.join(key, parent.prefix if parent else ())
        with on_error(lambda: shared_zygotes.leave(share)):
            share.forget_ended()
            with run.descriptor() as cancelled:
                zygote = share.zygote(run, cancelled)
            try:
                kind = CellKind(key, plan, group, stdin=control, has_keeper=False, may_exec=False)
                cell = zygote.order_cell(kind, parent)
            except CellLost:
                zygote.await_death(DYING_SECONDS)
                raise
        if not self._kept:
            self._kept.append(shared_zygotes.join(key, parent.prefix if parent else ()))
        return CagedProcess(cell, zygote, share)

    def release_idle(self) -> None:
        with suppress(IndexError):
            while True:
                shared_zygotes.leave(self._kept.pop())

    def _plan(self, read_only: tuple[str, ...], mount_slots: int) -> str:
        paths = tuple(pin(os.path.realpath(path), path) for path in dict.fromkeys(read_only))
        policy = resolve(SandboxPolicy(), paths, WORKER_LIMITS, host_capabilities(), NATIVE)
        plan = compile_plan(policy, probe.layout(), find_interpreter(ProcessConfig()).runtime_paths)
        slots = [f"{parent}/{number}" for parent in (_READ_ONLY, _WRITABLE) for number in range(mount_slots)]
        return encode(
            plan._replace(
                # Mount points on the sealed root.
                files=(*plan.files, *((f"{slot}/.empty", "") for slot in slots)),
                landlock=(*plan.landlock, (_WRITABLE, True)),
                # The runtime enforces memory limits itself; disk use is watched once something is mounted.
                watch=Watch(),
            )
        )
