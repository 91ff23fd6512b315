"""Namespaces of children: creation, users and quotas."""

from __future__ import annotations

import os

from ..fast_imports import signal
from . import fast_ctypes, kernel_files
from .call_list import CallList, Value
from .syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Tuple, Union

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PIDFD = 0x00001000

#: The new namespaces of an init. The cgroup namespace must be created after joining the cgroup; the network namespace
#: is that of the cloning process.
OF_INIT = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS

#: The exit status of our processes that cannot return to their own namespace.
ASTRAY = 70


class HomeNamespace:
    """This process's own namespace of one kind, which it can leave for others and return to."""

    def __init__(self, kind: str) -> None:
        self._flag = {"mnt": CLONE_NEWNS, "net": CLONE_NEWNET, "pid": CLONE_NEWPID, "ipc": CLONE_NEWIPC}[kind]
        self._path = f"/proc/self/ns/{kind}"
        self._descriptor = self.open_current()

    def open_current(self) -> int:
        """A descriptor of the namespace that this process is currently in."""
        return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    def enter(self, other: int) -> None:
        """`other` is a descriptor of a namespace, or of a process in it. For pid namespaces, children enter it."""
        call("setns", other, self._flag)

    def enter_new(self) -> None:
        call("unshare", self._flag)

    def return_home(self) -> None:
        """Return, or exit: later cells would be made in the wrong namespace. For mounts, this resets the cwd."""
        try:
            call("setns", self._descriptor, self._flag)
        except OSError:
            os._exit(ASTRAY)


#: The guest's ids in its own user namespace, unless the plan names others.
GUEST_UID = 1000
GUEST_GID = 1000

#: In the guest's pid namespace: its init, and the agent of a live cage.
INIT_PID, AGENT_PID = 1, 2


def pids_of_keepers(has_agent: bool) -> Tuple[int, ...]:
    """The pids, in the guest's namespace, of processes of ours that have the guest's user."""
    return (INIT_PID, AGENT_PID) if has_agent else (INIT_PID,)


def clone(flags: int) -> tuple[int, int]:
    """Fork into new namespaces. Returns (pid, pidfd) in the parent and (0, -1) in the child."""
    pidfd = fast_ctypes.c_int(-1)
    pid = call("clone", flags | CLONE_PIDFD | signal.SIGCHLD, 0, fast_ctypes.byref(pidfd), 0, 0)
    return (pid, pidfd.value) if pid else (0, -1)


def join(calls: CallList, init: Value, network: str) -> None:
    """Join the namespaces of another process, except its pid namespace, which only children can join."""
    calls.begin_step("join namespaces")
    flags = OF_INIT & ~CLONE_NEWPID
    calls.call("setns", init, flags if network == "host" else flags | CLONE_NEWNET)


def send_children_to(calls: CallList, process: Union[int, Value]) -> None:
    """Make later children join that process's pid namespace."""
    calls.call("setns", process, CLONE_NEWPID)


def map_ids(pid: int, host_uid: int, host_gid: int, inside_uid: int = GUEST_UID, inside_gid: int = GUEST_GID) -> None:
    """Map one user and one group for a cloned child. Only the parent may write the maps."""
    base = f"/proc/{pid}"
    for name, text in (
        ("setgroups", "deny"),
        ("gid_map", f"{inside_gid} {host_gid} 1"),
        ("uid_map", f"{inside_uid} {host_uid} 1"),
    ):
        kernel_files.write(f"{base}/{name}", text)


def become_guest(calls: CallList, uid: int = GUEST_UID, gid: int = GUEST_GID) -> None:
    """Change to the mapped ids. Capabilities are kept until they are dropped."""
    calls.begin_step("take guest identity")
    calls.call("setresgid", gid, gid, gid)
    calls.call("setresuid", uid, uid, uid)


def set_hostname(calls: CallList, name: str) -> None:
    calls.begin_step("name host", name)
    encoded = name.encode()
    calls.call("sethostname", encoded, len(encoded))
    calls.call("setdomainname", b"(none)", 6)


#: Guests cannot create namespaces, and get a share of what the kernel counts per user across all namespaces.
_NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup", "time")
_MOST_INOTIFY = {"instances": 32, "watches": 8192}
_SHARES = 16


def _quotas() -> Dict[str, int]:
    inotify = {}
    for name, most in _MOST_INOTIFY.items():
        of_the_user = int(kernel_files.read(f"/proc/sys/fs/inotify/max_user_{name}"))
        inotify[f"inotify_{name}"] = min(most, max(1, of_the_user // _SHARES))
    return {**inotify, **{f"{kind}_namespaces": 0 for kind in _NAMESPACES}}


def set_quotas(calls: CallList) -> None:
    calls.begin_step("set namespace quotas")
    for name, value in _quotas().items():
        # The file is missing on kernels without that kind of namespace.
        kernel_files.write_in_list(calls, f"/proc/sys/user/max_{name}", str(value), may_be_missing=True)


def identities(pid: Optional[int] = None) -> dict[str, int]:
    """The inode number of each namespace of a process, which identifies it."""
    base = f"/proc/{pid or 'self'}/ns"
    names = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
    return {name: os.stat(f"{base}/{name}").st_ino for name in names}
