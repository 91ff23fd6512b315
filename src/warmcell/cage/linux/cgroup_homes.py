"""Finds or makes the place for cells' control groups, and gives it back. Used by the supervisor only."""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Tuple

from .cgroups import ROOT, Group, GroupLimits, Home, members, own_paths, read, remove_group
from .processes import descendants

if TYPE_CHECKING:
    import subprocess

_V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
_HOME = "warmcell.home."  # then pid and time: the group that holds a supervisor's cells
_ASIDE = "warmcell.aside"  # where those wait that a group must not hold while it hands controllers down
_ATTEMPTS = 8
_IN_SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "--collect")
_SCOPE_SECONDS = 5.0

_locks: Dict[str, int] = {}
#: By the directories of a home as it was found: the process that it serves, and that process's own one.
_current: Dict[str, Tuple[int, Home]] = {}


def find() -> Optional[Home]:
    """Where groups can really be made with limits that really take, found by making one; None if nowhere.

    The home is a group of our own, removed at exit; what a killed supervisor left is removed by the next one.
    """
    for candidate in (_version_2_home, _version_1_home, _scope_home):
        try:
            home = candidate()
            if home is not None:
                _prove(home)
                return home
        except (OSError, ValueError, KeyError):
            continue
    return None


def current(home: Home) -> Home:
    """The same, or in a fork of the supervisor one beside it, so that each can end without the other."""
    pid, ours = _current.get(_key(home), (0, home))
    if pid != os.getpid():
        bases = {controller: os.path.dirname(path) for controller, path in home.directories.items()}
        ours = _settle(home.version, bases)
        _current[_key(home)] = (os.getpid(), ours)
    return ours


def _key(home: Home) -> str:
    return ":".join(home.directories.values())


def _prove(home: Home) -> None:
    try:
        Group(home, "warmcell-probe", GroupLimits(64 << 20, 16)).remove()
    except BaseException:
        _leave(home, os.getpid())
        raise


def _version_2_home() -> Optional[Home]:
    """The nearest group that may hand controllers down to cells: one without processes of its own, or the root.

    Our own group comes first if nobody else is in it, because a limit on it must hold for the cells as well: we then
    step aside into a group below it. If no group above will do, the others in ours step aside too.
    """
    own = os.path.normpath(ROOT + own_paths()[""])
    own = os.path.dirname(own) if os.path.basename(own) == _ASIDE else own
    if not os.path.exists(f"{own}/cgroup.controllers"):  # not version 2, or hidden by a namespace
        return None
    if not _holds_others(own) and _step_aside(own):
        base: Optional[str] = own
    else:
        base = next((path for path in _upwards(own) if _hand_down(path)), None)
        base = base or (own if _step_aside(own) else None)
    return _settle(2, {"": base}) if base else None


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
    except OSError:
        pass
    _step_back(path)
    return False


def _step_back(path: str) -> None:
    """Fails, and rightly so, while another supervisor's home is there: the last one to leave does it."""
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


def _version_1_home() -> Optional[Home]:
    own = own_paths()
    directories = {}
    for controller in _V1_CONTROLLERS:
        path = os.path.realpath(f"{ROOT}/{controller}") + own[controller].rstrip("/")
        if not os.access(path, os.W_OK):
            return None
        directories[controller] = path
    return _settle(1, directories)


def _settle(version: int, bases: Dict[str, str]) -> Home:
    """Makes the group that holds all our cells."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError, BlockingIOError):  # before we held it, somebody's sweep took it for abandoned
            return _make_home(version, bases)
    raise OSError(errno.EAGAIN, "no group could be kept", ":".join(bases.values()))


def _scope_home() -> Optional[Home]:
    """Where a login session may make no groups, its user's systemd does: a scope, kept alive by a process in it.

    Processes may not walk from the session into that scope, so zygotes have to be started in one as well.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.exists(f"{runtime}/systemd/private") or not os.path.exists(f"{ROOT}/cgroup.controllers"):
        return None
    prefix = ("/usr/bin/env", "-i", f"XDG_RUNTIME_DIR={runtime}", *_IN_SCOPE)
    path = _start_anchor([*prefix, "--property=Delegate=yes", "--", "/usr/bin/cat"])
    if not path or not _step_aside(path):
        return None
    return _settle(2, {"": path})._replace(prefix=(*prefix, "--", "/usr/bin/env", "-i", "LANG=C.UTF-8"))


def _start_anchor(command: List[str]) -> str:
    """Its group, once it is there. It reads from a pipe of ours, and so it and its scope end when we do."""
    import subprocess

    anchor = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert anchor.stdin and anchor.stdout
    with suppress(OSError):
        anchor.stdin.write(b"!")
        anchor.stdin.flush()
        if select.select([anchor.stdout], [], [], _SCOPE_SECONDS)[0] and anchor.stdout.read(1):
            atexit.register(_let_go, anchor, os.getpid())
            return os.path.normpath(ROOT + own_paths(anchor.pid)[""])
    anchor.kill()
    anchor.communicate()
    return ""


def _let_go(anchor: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        anchor.communicate()  # closes its input, which ends it


def _make_home(version: int, bases: Dict[str, str]) -> Home:
    """Handing down once more, from here to the cells, keeps others from taking the controllers back."""
    name = f"{_HOME}{os.getpid()}.{time.monotonic_ns():x}"
    directories = {controller: f"{base}/{name}" for controller, base in bases.items()}
    home = Home(version, directories)
    try:
        for path in dict.fromkeys(directories.values()):
            _sweep(os.path.dirname(path))
            os.mkdir(path, 0o755)
            _hold(path)
            if version == 2 and not _hand_down(path):
                raise OSError(errno.ENOTSUP, "controllers cannot be handed down", path)
    except OSError:
        _leave(home, os.getpid())
        raise
    if version == 2:
        home = home._replace(has_cpu=os.path.exists(f"{directories['']}/cpu.max"))
    _current[_key(home)] = (os.getpid(), home)
    atexit.register(_leave, home, os.getpid())
    return home


def _hold(path: str) -> None:
    """A lock that lives as long as we and our forks do."""
    _locks[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(_locks[path], fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.stat(path)  # is it still there


def _sweep(base: str) -> None:
    """Removes what killed supervisors left: empty groups on which nobody has a lock any more."""
    for home in [entry.path for entry in os.scandir(base) if entry.name.startswith(_HOME)]:
        with suppress(OSError):
            lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for cell in _groups_in(home):
                    os.rmdir(cell)
                os.rmdir(home)
            finally:
                os.close(lock)


def _groups_in(path: str) -> List[str]:
    return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]


def _leave(home: Home, owner: int) -> None:
    """Ends every cell that is left and gives the groups back."""
    if os.getpid() != owner:  # a fork of the supervisor ends, not the supervisor
        return
    _current.pop(_key(home), None)
    for path in dict.fromkeys(home.directories.values()):
        with suppress(OSError):
            for group in (*_groups_in(path), path):
                remove_group(group)
        with suppress(KeyError, OSError):
            os.close(_locks.pop(path))
        base = os.path.dirname(path)
        _sweep(base)  # forks often end without a word
        if os.path.isdir(f"{base}/{_ASIDE}"):
            _step_back(base)
