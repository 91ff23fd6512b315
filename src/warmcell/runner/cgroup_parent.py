"""GroupParent: the control group below which this process makes its cells' groups. Found or made, held, given back.

Whoever runs us decides how much of the tree of groups is ours, from all of it (root) to nothing (a container). The
kernel's rules that shape this file: a group of version 2 that hands controllers down may hold no processes itself
(except the root); a process may only walk between groups below one that its user may write to; a limit on our own
group is to hold for our guests too, so the nearest place is the best.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from functools import cache

from warmcell.core.light import suppress
from warmcell.core.records import replace
from warmcell.enforcers import probe
from warmcell.lifetime.descriptors import Descriptors, host_failure, is_exhaustion
from warmcell.lifetime.ownership import Lock, own_until_exit
from warmcell.policy.host import HostCapabilities
from warmcell.runner.cgroups import ROOT, Group, GroupLimits, groups_of, members, read, remove_group

_V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
_PARENT = "warmcell.home."  # then pid and time
_ASIDE = "warmcell.aside"  # where those wait that a group must not hold while it hands controllers down
_ATTEMPTS = 8
_MOST_BESIDE = 256


class GroupParent:
    """One directory (version 2, the key is "") or one per controller (version 1), each a group below one of `bases`.

    Held by a lock for as long as this process lives, so that no other takes it for abandoned; removed at exit, and by
    the next supervisor where we were killed. A fork makes one beside it when it first needs one, so that each of the
    two can end without the other.
    """

    def __init__(self, bases: dict[str, str], prefix: tuple[str, ...] = ()) -> None:
        self._bases = bases
        #: What the command of a zygote must begin with, for its cells to be allowed to join groups in here.
        self.prefix = prefix
        self._locks = Descriptors()
        self._directories: dict[str, str] = {}
        self._settling = Lock()
        own_until_exit(self)

    @property
    def version(self) -> int:
        return 2 if "" in self._bases else 1

    @property
    def mechanism(self) -> str:
        return f"cgroup v{self.version}"

    @property
    def has_cpu(self) -> bool:
        """Whether cells can be given a share of the processors."""
        return self.version == 1 or os.path.exists(f"{self.directories['']}/cpu.max")

    @property
    def directories(self) -> dict[str, str]:
        if not self._directories:
            # Two at once would have a place each, and one that fails to get it would give up both.
            with self._settling:
                if not self._directories:
                    self._directories = self._settle()
        return self._directories

    def make_group(self, name: str, limits: GroupLimits) -> Group:
        """For one cell, which may join it; the caller removes it."""
        if limits.cpus and not self.has_cpu:
            raise OSError(errno.ENOTSUP, "a share of the processors needs the cpu controller", self.directories[""])
        return Group(self.directories, name, limits)

    def abandon(self) -> None:
        self._directories = {}

    def close(self) -> None:
        """Ends every cell that is left and gives the groups back."""
        directories, self._directories = self._directories, {}
        self._give_back(directories)

    def _give_back(self, directories: dict[str, str]) -> None:
        for path in dict.fromkeys(directories.values()):
            for group in (*_groups_in(path), path):
                remove_group(group)
        self._locks.close()
        for base in dict.fromkeys(self._bases.values()) if directories else ():
            _sweep(base)  # forks often end without a word
            if os.path.isdir(f"{base}/{_ASIDE}"):
                _step_back(base)

    def _settle(self) -> dict[str, str]:
        for _ in range(_ATTEMPTS):
            # Before we held it, somebody's sweep may have taken it for abandoned.
            with suppress(FileNotFoundError, BlockingIOError):
                return self._make()
        raise OSError(errno.EAGAIN, "no group could be kept", ":".join(self._bases.values()))

    def _make(self) -> dict[str, str]:
        """Handing down once more, from here to the cells, keeps others from taking the controllers back."""
        name = f"{_PARENT}{os.getpid()}.{time.monotonic_ns():x}"
        directories = {controller: f"{base}/{name}" for controller, base in self._bases.items()}
        try:
            for path in dict.fromkeys(directories.values()):
                _sweep(os.path.dirname(path))
                os.mkdir(path, 0o755)
                self._hold(path)
                if self.version == 2 and not _hand_down(path):
                    raise OSError(errno.ENOTSUP, "controllers cannot be handed down", path)
        except OSError:
            self._give_back(directories)
            raise
        return directories

    def _hold(self, path: str) -> None:
        """The lock belongs to the open directory, not to us: a fork that closes its copy does not give it up."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        fcntl.flock(self._locks.opened(lambda: os.open(path, flags)), fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(path)  # is it still there


@cache
def group_parent() -> GroupParent | None:
    """Where groups can really be made with limits that really take, found by making one; None if nowhere."""
    if not os.path.isdir(ROOT):
        return None
    try:
        return find()
    except OSError as error:
        raise host_failure(error, "find out about control groups") from error


@cache
def host_capabilities() -> HostCapabilities:
    """What this host can enforce, with what its control groups add."""
    parent = group_parent()
    if parent is None:
        return probe.measure()
    return replace(probe.measure(), cgroup=parent.mechanism, cpu_share=parent.has_cpu)


def find() -> GroupParent | None:
    for candidate in (_in_version_2, _in_version_1, _in_a_scope_of_systemd):
        try:
            parent = candidate()
            if parent is not None:
                _prove(parent)
                return parent
        except (OSError, ValueError, KeyError) as error:
            # Being short of descriptors now must not mean weaker limits for as long as we live.
            if isinstance(error, OSError) and is_exhaustion(error):
                raise
    return None


def _prove(parent: GroupParent) -> None:
    try:
        parent.make_group("warmcell-probe", GroupLimits(64 << 20, 16)).remove()
    except BaseException:
        parent.close()
        raise


def _in_version_2() -> GroupParent | None:
    """The nearest group that may hand controllers down to cells: one without processes of its own, or the root.

    Our own group comes first if nobody else is in it, because a limit on it must hold for the cells as well: we then
    step aside into a group below it. If no group above will do, the others in ours step aside too.
    """
    own = os.path.normpath(ROOT + groups_of()[""])
    own = os.path.dirname(own) if os.path.basename(own) == _ASIDE else own
    if not os.path.exists(f"{own}/cgroup.controllers"):  # not version 2, or hidden by a namespace
        return None
    if not _holds_others(own) and _step_aside(own):
        return GroupParent({"": own})
    base = next((path for path in _upwards(own) if _hand_down(path)), None)
    base = base or (own if _step_aside(own) else None)
    return GroupParent({"": base}) if base else None


def _in_version_1() -> GroupParent | None:
    """Every controller has a tree of its own, and we need a place in all of them."""
    own = groups_of()
    bases = {name: os.path.realpath(f"{ROOT}/{name}") + own[name].rstrip("/") for name in _V1_CONTROLLERS}
    return GroupParent(bases) if all(os.access(path, os.W_OK) for path in bases.values()) else None


def _in_a_scope_of_systemd() -> GroupParent | None:
    if not os.path.exists(f"{ROOT}/cgroup.controllers"):
        return None
    from warmcell.runner.cgroup_scope import start_scope

    scope = start_scope()
    if scope is None or not _step_aside(scope.path):
        return None
    return GroupParent({"": scope.path}, scope.zygote_prefix)


def _upwards(path: str) -> Iterator[str]:
    while path.startswith(ROOT):
        yield path
        path = os.path.dirname(path)


def _hand_down(path: str) -> bool:
    """Memory and processes are needed; a user's session often has no cpu controller to give."""
    if not os.access(f"{path}/cgroup.procs", os.W_OK):  # a cell's way into its group leads past here
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


def _holds_others(path: str) -> bool:
    from warmcell.cage.linux.processes import descendants

    ours = {os.getpid(), *descendants(os.getpid())}
    return not os.path.exists(f"{path}/cgroup.type") or not set(members(path)) <= ours  # only the root has no type


def _step_aside(path: str) -> bool:
    """Moves everybody in the group into one below it, so that it may hand controllers down; undone if it may not."""
    if not os.access(path, os.W_OK) or not {"memory", "pids"} <= set(read(f"{path}/cgroup.controllers").split()):
        return False
    try:
        os.makedirs(f"{path}/{_ASIDE}", exist_ok=True)
        for _ in range(_ATTEMPTS):  # they may fork meanwhile
            _move(path, f"{path}/{_ASIDE}")
            if _hand_down(path):
                return True
    except OSError as error:
        if is_exhaustion(error):
            raise
    _step_back(path)
    return False


def _step_back(path: str) -> None:
    """Fails, and rightly so, while another supervisor's cells are there: the last one to leave does it."""
    with suppress(OSError):
        _write_control(path, "-cpu -memory -pids")
        _move(f"{path}/{_ASIDE}", path)
        os.rmdir(f"{path}/{_ASIDE}")


def _move(source: str, target: str) -> None:
    for pid in members(source):
        try:
            with open(f"{target}/cgroup.procs", "w") as file:
                file.write(str(pid))
        except ProcessLookupError:
            continue


def _sweep(base: str) -> None:
    """Removes what killed supervisors left: groups on which nobody has a lock, with whoever is still dying in them.

    Beside our own group too: a session, a service or a container that is started again has another one.
    """
    beside = _groups_in(os.path.dirname(base)) if base != ROOT and os.path.dirname(base) != ROOT else [base]
    for place in dict.fromkeys([base, *beside[:_MOST_BESIDE]]):
        for path in _groups_in(place):
            if os.path.basename(path).startswith(_PARENT):
                _remove_abandoned(path)


def _remove_abandoned(parent: str) -> None:
    with suppress(OSError):
        lock = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_uid == os.geteuid():
                for group in (*_groups_in(parent), parent):
                    remove_group(group)
        finally:
            os.close(lock)


def _groups_in(path: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, PermissionError):  # somebody else's sweep was quicker, or it is not ours to see
        return []
