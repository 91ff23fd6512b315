"""GroupParent: the control group below which this process makes the groups of its cells.

How much of the cgroup tree we may use depends on the environment, from all of it (root) to nothing (a container). Three
rules shape this file. A version 2 group that delegates controllers must not contain processes, except the root. A
process can only move between groups below one that its user may write to. And a limit on our own group must also hold
for our guests, so the nearest usable group is the best.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import time
from collections.abc import Iterator
from functools import cache

from warmcell.cage.linux import kernel_files
from warmcell.core.light import closing_fd, on_error, suppress
from warmcell.core.records import replace
from warmcell.enforcers import probe
from warmcell.lifetime.descriptors import Descriptors, host_failure, is_exhaustion
from warmcell.lifetime.ownership import Lock, own_until_exit
from warmcell.policy.resolve import HostCapabilities
from warmcell.runner.cgroups import ROOT, Group, GroupLimits, groups_of, members, read, remove_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

_V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
_PARENT = "warmcell.home."  # followed by pid and time
_ASIDE = "warmcell.aside"  # holds the processes of a group that delegates controllers
_ATTEMPTS = 8
_MOST_SIBLINGS = 256
#: How long to try to remove one group of a program that was killed: there may be many.
_ABANDONED_SECONDS = 2.0
#: By version: the controller and the file of a group's weight, the weight of one task, and the kernel's maximum.
_WEIGHTS = {1: ("cpu", "cpu.shares", 1024, 1 << 18), 2: ("", "cpu.weight", 100, 10_000)}

_IN_SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "--collect")
_SCOPE_START_SECONDS, _SCOPE_END_SECONDS = 5.0, 2.0
#: Kept while this process lives: a scope ends with its anchor process.
_scopes: list[_Scope] = []


class GroupParent:
    """A group (version 2, with the key "") or one per controller (version 1), each below one of `bases`.

    Created on first use, also in a fork of the program, so that each process can exit independently. Locked while this
    process lives, and removed at exit; the next supervisor removes one that is not locked.
    """

    def __init__(self, bases: dict[str, str], prefix: tuple[str, ...] = ()) -> None:
        self._bases = bases
        #: Command prefix for zygotes, without which their cells may not join these groups.
        self.prefix = prefix
        self._locks = Descriptors()
        self._directories: dict[str, str] = {}
        self._creating = Lock()
        #: How many cells wait for a processor.
        self._added_weight = 0
        self._weight_lock = Lock()
        own_until_exit(self)

    @property
    def version(self) -> int:
        return 2 if "" in self._bases else 1

    @property
    def mechanism(self) -> str:
        return f"cgroup v{self.version}"

    @property
    def has_cpu(self) -> bool:
        """Whether a cell's share of the processors can be limited."""
        return self.version == 1 or os.path.exists(f"{self.directories['']}/cpu.max")

    @property
    def directories(self) -> dict[str, str]:
        if not self._directories:
            with self._creating:  # if two threads created directories, a failure of one would remove both
                if not self._directories:
                    self._directories = self._create()
        return self._directories

    def make_group(self, name: str, limits: GroupLimits) -> Group:
        """Makes a group for one cell to join; the caller removes it."""
        if limits.cpus and not self.has_cpu:
            raise OSError(errno.ENOTSUP, "a CPU share needs the cpu controller", self.directories[""])
        return Group(self.directories, name, limits, self._add_weight)

    def _add_weight(self, tasks: int) -> None:
        """Raises the weight of our group. By default the scheduler gives all our cells together as much processor time
        as one other task of the host; with one task's weight per cell they get as much as without a group.
        """
        controller, file, one, most = _WEIGHTS[self.version]
        with self._weight_lock:
            self._added_weight += tasks
            if self._directories:
                with suppress(OSError):  # no cpu controller
                    weight = min(one * (1 + self._added_weight), most)
                    kernel_files.write(f"{self._directories[controller]}/{file}", str(weight))

    def abandon(self) -> None:
        self._directories, self._added_weight = {}, 0

    def close(self) -> None:
        """Kills remaining cells and removes the groups."""
        directories, self._directories = self._directories, {}
        self._remove(directories)

    def _remove(self, directories: dict[str, str]) -> None:
        for path in dict.fromkeys(directories.values()):
            for group in (*_groups_in(path), path):
                remove_group(group)
        self._locks.close()
        for base in dict.fromkeys(self._bases.values()) if directories else ():
            _sweep(base)  # forks often exit without cleaning up
            if os.path.isdir(f"{base}/{_ASIDE}"):
                _move_members_back(base)

    def _create(self) -> dict[str, str]:
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError, BlockingIOError):  # another supervisor's sweep removed it before we locked
                return self._create_once()
        raise OSError(errno.EAGAIN, "each new group was removed by another process", ":".join(self._bases.values()))

    def _create_once(self) -> dict[str, str]:
        """Creates the groups and delegates controllers from them to the cells' groups, where no other process can take
        the controllers back.
        """
        name = f"{_PARENT}{os.getpid()}.{time.monotonic_ns():x}"
        directories = {controller: f"{base}/{name}" for controller, base in self._bases.items()}
        try:
            for path in dict.fromkeys(directories.values()):
                _sweep(os.path.dirname(path))
                os.mkdir(path, 0o755)
                self._lock_group(path)
                if self.version == 2 and not _delegate_controllers(path):
                    raise OSError(errno.ENOTSUP, "controllers cannot be delegated", path)
        except OSError:
            self._remove(directories)
            raise
        return directories

    def _lock_group(self, path: str) -> None:
        """Locks a directory. The lock belongs to the open file description: a fork's close() does not release it."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        fcntl.flock(self._locks.open(lambda: os.open(path, flags)), fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(path)  # raises if it was removed


@cache
def group_parent() -> GroupParent | None:
    """The place where groups with limits can be made, found by making one; None if there is none."""
    if not os.path.isdir(ROOT):
        return None
    try:
        return find()
    except OSError as error:
        raise host_failure(error, "probe control groups") from error


@cache
def host_capabilities() -> HostCapabilities:
    """What this host can enforce, including its control groups."""
    parent = group_parent()
    if parent is None:
        return probe.measure()
    return replace(probe.measure(), cgroup=parent.mechanism, cpu_share=parent.has_cpu)


def find() -> GroupParent | None:
    for candidate in (_in_version_2, _in_version_1, _in_a_scope_of_systemd):
        try:
            parent = candidate()
            if parent is not None:
                with on_error(parent.close):  # proves that it can make groups
                    parent.make_group("warmcell-probe", GroupLimits(64 << 20, 16)).remove()
                return parent
        except (OSError, ValueError, KeyError) as error:
            # A temporary lack of descriptors must not weaken the limits for the rest of this process.
            if isinstance(error, OSError) and is_exhaustion(error):
                raise
    return None


def _in_version_2() -> GroupParent | None:
    """The nearest group that can delegate controllers: one without processes, or the root.

    If our own group only contains our processes, they move into a group below it, and it becomes such a group. If no
    group above it can be used, the processes of others in our group are moved as well.
    """
    own = os.path.normpath(ROOT + groups_of()[""])
    own = os.path.dirname(own) if os.path.basename(own) == _ASIDE else own
    if not os.path.exists(f"{own}/cgroup.controllers"):  # not version 2, or hidden by a namespace
        return None
    if not _has_foreign_members(own) and _move_members_below(own):
        return GroupParent({"": own})
    base = next((path for path in _upwards(own) if _delegate_controllers(path)), None)
    base = base or (own if _move_members_below(own) else None)
    return GroupParent({"": base}) if base else None


def _in_version_1() -> GroupParent | None:
    """Our groups in the controllers' hierarchies, if all of them are writable."""
    own = groups_of()
    bases = {name: os.path.realpath(f"{ROOT}/{name}") + own[name].rstrip("/") for name in _V1_CONTROLLERS}
    return GroupParent(bases) if all(os.access(path, os.W_OK) for path in bases.values()) else None


def _in_a_scope_of_systemd() -> GroupParent | None:
    if not os.path.exists(f"{ROOT}/cgroup.controllers"):
        return None
    scope = _start_scope()
    if scope is None or not _move_members_below(scope.path):
        return None
    return GroupParent({"": scope.path}, scope.zygote_prefix)


class _Scope:
    """A scope of the user's systemd, which makes one on request where a login session may not make groups itself.

    It exists while its anchor does, a process that reads from our pipe and exits at end of file. A fork of the program
    keeps its copy of the pipe, because its cells use the same scope.
    """

    def __init__(self, path: str, zygote_prefix: tuple[str, ...], anchor: subprocess.Popen[bytes]) -> None:
        self.path = path
        #: Starts zygotes in a scope as well: processes cannot move from the session into a scope.
        self.zygote_prefix = zygote_prefix
        self._anchor: subprocess.Popen[bytes] | None = anchor
        self._parents_anchor: subprocess.Popen[bytes] | None = None
        own_until_exit(self)

    def abandon(self) -> None:
        self._parents_anchor, self._anchor = self._anchor, None

    def close(self) -> None:
        import subprocess

        anchor, self._anchor = self._anchor, None
        if anchor is None or anchor.stdin is None:
            return
        anchor.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # a fork of ours still holds the pipe
            anchor.wait(_SCOPE_END_SECONDS)


def _start_scope() -> _Scope | None:
    """A scope in which we may make groups; None if this user has no systemd."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.exists(f"{runtime}/systemd/private"):
        return None
    in_scope = ("/usr/bin/env", "-i", f"XDG_RUNTIME_DIR={runtime}", *_IN_SCOPE)
    anchor = _start_anchor([*in_scope, "--property=Delegate=yes", "--", "/usr/bin/cat"])
    if anchor is None:
        return None
    path = os.path.normpath(ROOT + groups_of(anchor.pid)[""])
    scope = _Scope(path, (*in_scope, "--", "/usr/bin/env", "-i", "LANG=C.UTF-8"), anchor)
    _scopes.append(scope)
    return scope


def _start_anchor(command: list[str]) -> subprocess.Popen[bytes] | None:
    """Starts `cat` in the scope and waits for its echo: `systemd-run` execs it only once it is in the scope."""
    import subprocess

    anchor = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert anchor.stdin and anchor.stdout
    with suppress(OSError):
        anchor.stdin.write(b"!")
        anchor.stdin.flush()
        if select.select([anchor.stdout], [], [], _SCOPE_START_SECONDS)[0] and anchor.stdout.read(1):
            return anchor
    anchor.kill()
    anchor.communicate()
    return None


def _upwards(path: str) -> Iterator[str]:
    while path.startswith(ROOT):
        yield path
        path = os.path.dirname(path)


def _delegate_controllers(path: str) -> bool:
    """Delegates memory and pids, and cpu if it is available, which it often is not in a user's session."""
    if not os.access(f"{path}/cgroup.procs", os.W_OK):  # required for moving cells to groups below
        return False
    try:
        _write_control(path, "+memory +pids")
    except OSError:
        return False
    with suppress(OSError):
        _write_control(path, "+cpu")
    return True


def _write_control(path: str, change: str) -> None:
    with open(f"{path}/cgroup.subtree_control", "w") as file:
        file.write(change)


def _has_foreign_members(path: str) -> bool:
    from warmcell.cage.linux.processes import descendants

    ours = {os.getpid(), *descendants(os.getpid())}
    return not os.path.exists(f"{path}/cgroup.type") or not set(members(path)) <= ours  # only the root has no type


def _move_members_below(path: str) -> bool:
    """Moves all processes of the group into one below it, so that it can delegate. Undone if it still cannot."""
    if not os.access(path, os.W_OK) or not {"memory", "pids"} <= set(read(f"{path}/cgroup.controllers").split()):
        return False
    try:
        os.makedirs(f"{path}/{_ASIDE}", exist_ok=True)
        for _ in range(_ATTEMPTS):  # they may fork in between
            _move(path, f"{path}/{_ASIDE}")
            if _delegate_controllers(path):
                return True
    except OSError as error:
        if is_exhaustion(error):
            raise
    _move_members_back(path)
    return False


def _move_members_back(path: str) -> None:
    """Undoes that. Fails while another supervisor has cells below the group, which undoes it when it exits."""
    with suppress(OSError):
        _write_control(path, "-cpu -memory -pids")
        _move(f"{path}/{_ASIDE}", path)
        os.rmdir(f"{path}/{_ASIDE}")


def _move(source: str, target: str) -> None:
    for pid in members(source):
        with suppress(ProcessLookupError), open(f"{target}/cgroup.procs", "w") as file:
            file.write(str(pid))


def _sweep(base: str) -> None:
    """Removes unlocked groups, which killed supervisors left, with the processes in them.

    Also below our siblings: a session, service or container that was restarted is in another group than before.
    """
    siblings = _groups_in(os.path.dirname(base)) if base != ROOT and os.path.dirname(base) != ROOT else [base]
    for group in dict.fromkeys([base, *siblings[:_MOST_SIBLINGS]]):
        for path in _groups_in(group):
            if os.path.basename(path).startswith(_PARENT):
                _remove_abandoned(path)


def _remove_abandoned(parent: str) -> None:
    with suppress(OSError), closing_fd(os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_uid == os.geteuid():
            for group in (*_groups_in(parent), parent):
                remove_group(group, _ABANDONED_SECONDS)


def _groups_in(path: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, PermissionError):  # already removed, or not readable by us
        return []
