"""Filter rules for what a guest shares with others although its namespaces are its own. Pure module.

The kernel counts some things per user of the host (pages of pipes, descriptors in flight, pinned memory), shows some
per inode (leases, events), and keeps some memory on nobody's account. A call that leads there is refused with the error
that programs expect where a file system or an old kernel cannot do it, so that they fall back; or it is handed to the
manager, who does it in the guest's place, or makes note of it.
"""

from __future__ import annotations

from .bpf import ALLOW, AND, JEQ, JGE, NOTIFY, Instruction, argument, errno, load, ret, returns_if_equal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List

_EPERM, _EINVAL, _ENOSYS, _EOPNOTSUPP = 1, 22, 38, 95

#: Leases and delegations stop other openers of a file, and directory events tell of them.
_WATCHING_OTHERS = (1024, 1026, 1040)  # F_SETLEASE, F_NOTIFY, F_SETDELEG
_F_SETPIPE_SZ = 1031

_SOL_SOCKET = 1
#: Filters take the memory that the kernel has for compiled ones, from the next cage's own filter too; zero-copy pins
#: pages on the account of the user.
_SO_ATTACH_FILTER, _SO_ATTACH_BPF, _SO_REUSEPORT_CBPF, _SO_REUSEPORT_EBPF, _SO_ZEROCOPY = 26, 50, 51, 52, 60
_SHM_LOCK = 11

_MAP_SHARED_ANONYMOUS = 0x21
#: Shared anonymous memory of up to so many bytes is not worth telling; whoever counts takes it to be as large.
SMALL_SHARED_MEMORY = 1 << 16

#: They keep pages in pipes and sockets that are nobody's any more: unmapped, or of a file that was cut.
_PINNING = ("vmsplice", "splice", "tee", "sendfile")
#: As many rules as one likes, in kernel memory.
_LANDLOCK = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")


def rules_for_all() -> Dict[str, List[Instruction]]:
    """Frequent ones first."""
    return {
        "fcntl": _fcntl_rule(),
        "setsockopt": _setsockopt_rule(),
        "shmctl": [load(argument(1)), *returns_if_equal((_SHM_LOCK,), errno(_EPERM)), ret(ALLOW)],
    }


def rules_for_inodes(is_caged: bool) -> Dict[str, List[Instruction]]:
    """Events and locks, on what is the guest's own: the manager says. Without mounts to tell by, no events."""
    if is_caged:
        return {name: [ret(NOTIFY)] for name in ("inotify_add_watch", "flock")}
    return {"flock": [ret(NOTIFY)], **{name: [ret(errno(_ENOSYS))] for name in ("inotify_init", "inotify_init1")}}


def rules_without_cgroup() -> Dict[str, List[Instruction]]:
    """Where memory is counted by looking, and must not be where nobody can look."""
    return {
        "mmap": _mmap_rule(),
        **{name: [ret(errno(_EINVAL))] for name in _PINNING},
        **{name: [ret(errno(_ENOSYS))] for name in _LANDLOCK},
    }


def rules_for_host_disks() -> Dict[str, List[Instruction]]:
    """Gigabytes at once, of which no look is quick enough: where it is not there, libc writes what was asked for."""
    return {"fallocate": [ret(errno(_EOPNOTSUPP))]}


def _fcntl_rule() -> List[Instruction]:
    command = load(argument(1))
    refused = returns_if_equal(_WATCHING_OTHERS, errno(_EINVAL))
    return [command, *refused, *returns_if_equal((_F_SETPIPE_SZ,), errno(_EPERM)), ret(ALLOW)]


def _setsockopt_rule() -> List[Instruction]:
    options = (_SO_ATTACH_FILTER, _SO_ATTACH_BPF, _SO_REUSEPORT_CBPF, _SO_REUSEPORT_EBPF, _SO_ZEROCOPY)
    of_sockets = [load(argument(2)), *returns_if_equal(options, errno(_EPERM)), ret(ALLOW)]
    return [load(argument(1)), Instruction(JEQ, 0, len(of_sockets), _SOL_SOCKET), *of_sockets, ret(ALLOW)]


def _mmap_rule() -> List[Instruction]:
    """Large shared anonymous memory is told: it is there for as long as any page of it is mapped anywhere."""
    length = argument(1)
    return [
        load(argument(3)),
        Instruction(AND, 0, 0, _MAP_SHARED_ANONYMOUS),
        Instruction(JEQ, 1, 0, _MAP_SHARED_ANONYMOUS),
        ret(ALLOW),
        load(length + 4),
        Instruction(JEQ, 1, 0, 0),
        ret(NOTIFY),
        load(length),
        Instruction(JGE, 0, 1, SMALL_SHARED_MEMORY + 1),
        ret(NOTIFY),
        ret(ALLOW),
    ]
