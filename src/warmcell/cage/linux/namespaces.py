"""A child in namespaces of its own, and who it is in there."""

from __future__ import annotations

import os
import struct

from ..light import signal, socket
from . import foreign, kernel_files
from .call_list import CallList, Value
from .syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Union

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PIDFD = 0x00001000

#: Who the guest is in its own world, whoever runs Warmcell.
GUEST_UID = 1000
GUEST_GID = 1000

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1


def clone(flags: int) -> tuple[int, int]:
    """Forks into new namespaces. Returns (pid, pidfd) in the parent and (0, -1) in the child."""
    pidfd = foreign.c_int(-1)
    pid = call("clone", flags | CLONE_PIDFD | signal.SIGCHLD, 0, foreign.byref(pidfd), 0, 0)
    return (pid, pidfd.value) if pid else (0, -1)


def flags_for(network: str) -> int:
    """Every namespace but the cgroup one, which must be entered after the cgroup was joined."""
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
    return flags if network == "host" else flags | CLONE_NEWNET


def join(calls: CallList, init: Value, network: str) -> None:
    """Enters the namespaces of another process, but for its pid namespace: that is for children only."""
    calls.part("join namespaces")
    calls.call("setns", init, flags_for(network) & ~CLONE_NEWPID)


def send_children_to(calls: CallList, process: Union[int, Value]) -> None:
    """The children that are forked from then on are in that process's pid namespace."""
    calls.call("setns", process, CLONE_NEWPID)


def map_ids(pid: int, host_uid: int, host_gid: int, inside_uid: int = GUEST_UID, inside_gid: int = GUEST_GID) -> None:
    """Gives a cloned child one user and one group; written from outside because only the parent may choose them."""
    base = f"/proc/{pid}"
    for name, text in (
        ("setgroups", "deny"),
        ("gid_map", f"{inside_gid} {host_gid} 1"),
        ("uid_map", f"{inside_uid} {host_uid} 1"),
    ):
        kernel_files.write(f"{base}/{name}", text)


def become_guest(calls: CallList) -> None:
    """Takes the mapped identity. The namespace has no uid 0, so capabilities stay until they are dropped."""
    calls.part("take guest identity")
    calls.call("setresgid", GUEST_GID, GUEST_GID, GUEST_GID)
    calls.call("setresuid", GUEST_UID, GUEST_UID, GUEST_UID)


def set_hostname(calls: CallList, name: str) -> None:
    calls.part("name host", name)
    encoded = name.encode()
    calls.call("sethostname", encoded, len(encoded))
    calls.call("setdomainname", b"(none)", 6)


#: No namespace below ours; of what the kernel counts for a user in all namespaces together, a share at most.
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
    calls.part("set namespace quotas")
    for name, value in _quotas().items():
        # Not there: a kernel without that kind.
        kernel_files.write_in_list(calls, f"/proc/sys/user/max_{name}", str(value), may_be_missing=True)


def bring_up_loopback(calls: CallList) -> None:
    """With small buffers: what TCP holds in flight counts for nobody, unless a cgroup of version 2 counts it."""
    calls.part("bring up loopback", "lo")
    for name in ("tcp_rmem", "tcp_wmem"):
        kernel_files.write_in_list(calls, f"/proc/sys/net/ipv4/{name}", "4096 65536 262144")
    probe = calls.call("socket", socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)
    # A new loopback has no flags but its own: there is nothing to keep.
    calls.call("ioctl", probe, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
    calls.call("close", probe)


def identities(pid: Optional[int] = None) -> dict[str, int]:
    """The inode number of each namespace a process is in: equal numbers, same namespace."""
    base = f"/proc/{pid or 'self'}/ns"
    names = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
    return {name: os.stat(f"{base}/{name}").st_ino for name in names}
