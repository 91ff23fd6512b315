"""Classic BPF as data, and filter rules for what guests share with others in spite of their namespaces. Pure module.

The kernel counts some things per user of the host (pages of pipes, descriptors in flight, pinned memory), shows some
per inode (leases, events), and does not account some memory at all. Such a call is refused with the error of a file
system or an old kernel that lacks it, so that programs fall back; or it goes to the manager, which makes the call for
the guest or counts it.
"""

from __future__ import annotations

from ..records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Sequence, Tuple

KILL, ALLOW, NOTIFY = 0x80000000, 0x7FFF0000, 0x7FC00000


def errno(number: int) -> int:
    """The action that returns an error to the caller."""
    return 0x00050000 | number


# Offsets in struct seccomp_data; arguments are 64 bits, little endian on both architectures.
NR, ARCH = 0, 4


def argument(index: int) -> int:
    return 16 + 8 * index


LD, JA, JEQ, JGE, JSET, AND, RET = 0x20, 0x05, 0x15, 0x35, 0x45, 0x54, 0x06
_FARTHEST = 255  # reach of a conditional jump


class Instruction(NamedTuple):
    code: int
    jump_true: int
    jump_false: int
    value: int


def ret(action: int) -> Instruction:
    return Instruction(RET, 0, 0, action)


def load(offset: int) -> Instruction:
    return Instruction(LD, 0, 0, offset)


def returns_if_equal(values: Sequence[int], action: int) -> List[Instruction]:
    body: List[Instruction] = []
    for value in values:
        body += [Instruction(JEQ, 0, 1, value), ret(action)]
    return body


def returns_if_any_bit(bits: int, action: int) -> List[Instruction]:
    return [Instruction(JSET, 0, 1, bits), ret(action)]


def without_bits(index: int, bits: int) -> List[Instruction]:
    return [load(argument(index)), *returns_if_any_bit(bits, errno(_EPERM)), ret(ALLOW)]


def only(index: int, values: Sequence[int]) -> List[Instruction]:
    return [load(argument(index)), *returns_if_equal(values, ALLOW), ret(errno(_EPERM))]


def all_but(index: int, values: Sequence[int]) -> List[Instruction]:
    return [load(argument(index)), *returns_if_equal(values, errno(_EPERM)), ret(ALLOW)]


def search(cases: Sequence[Tuple[int, List[Instruction]]]) -> List[Instruction]:
    """A binary search. Each case is the first number that its rule applies to, ascending from 0.

    When a filter is installed, the kernel evaluates it once for every call number: with a linear list that would cost
    each cell more than everything else about the filter.
    """
    if len(cases) == 1:
        return cases[0][1]
    middle = len(cases) // 2
    below, above = search(cases[:middle]), search(cases[middle:])
    first = cases[middle][0]
    if len(below) <= _FARTHEST:
        return [Instruction(JGE, len(below), 0, first), *below, *above]
    return [Instruction(JGE, 0, 1, first), Instruction(JA, 0, 0, len(below)), *below, *above]


_EPERM, _EINVAL, _ENOSYS, _EOPNOTSUPP = 1, 22, 38, 95

#: Leases and delegations stop other openers of a file, and directory events tell of them.
_WATCHING_OTHERS = (1024, 1026, 1040)  # F_SETLEASE, F_NOTIFY, F_SETDELEG
_F_SETPIPE_SZ = 1031

_SOL_SOCKET = 1
#: Filters take the memory that the kernel has for compiled ones, from the next cage's own filter too; zero-copy pins
#: pages on the account of the user.
_SO_ATTACH_FILTER, _SO_ATTACH_BPF, _SO_REUSEPORT_CBPF, _SO_REUSEPORT_EBPF, _SO_ZEROCOPY = 26, 50, 51, 52, 60
#: A larger send buffer lets one unix socket queue megabytes that no file of /proc shows. Setting it is accepted and has
#: no effect, as on a host with a small net.core.wmem_max, so every queue is bounded by net.core.wmem_default.
_SO_SNDBUF, _SO_SNDBUFFORCE = 7, 32
_SHM_LOCK = 11

_MAP_SHARED_ANONYMOUS = 0x21
#: Smaller mappings of shared anonymous memory are not reported; the watcher counts each as this large.
SMALL_SHARED_MEMORY = 1 << 16

#: They keep pages in pipes and sockets that no process maps any more: unmapped, or of a truncated file.
_PINNING = ("vmsplice", "splice", "tee", "sendfile")
#: Any number of rules, in kernel memory.
_LANDLOCK = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")


def rules_for_all() -> Dict[str, List[Instruction]]:
    """Frequent ones first."""
    return {
        "fcntl": _fcntl_rule(),
        "setsockopt": _setsockopt_rule(),
        "shmctl": [load(argument(1)), *returns_if_equal((_SHM_LOCK,), errno(_EPERM)), ret(ALLOW)],
    }


def rules_for_inodes(is_caged: bool) -> Dict[str, List[Instruction]]:
    """Events and locks only on the guest's own files, by the manager. Without mounts of its own, no events."""
    if is_caged:
        return {name: [ret(NOTIFY)] for name in ("inotify_add_watch", "flock")}
    return {"flock": [ret(NOTIFY)], **{name: [ret(errno(_ENOSYS))] for name in ("inotify_init", "inotify_init1")}}


def rules_without_cgroup() -> Dict[str, List[Instruction]]:
    """Where the watcher counts memory: it must not be where the watcher cannot see it."""
    return {
        "mmap": _mmap_rule(),
        **{name: [ret(errno(_EINVAL))] for name in _PINNING},
        **{name: [ret(errno(_ENOSYS))] for name in _LANDLOCK},
    }


def rules_for_host_disks() -> Dict[str, List[Instruction]]:
    """fallocate takes gigabytes at once, faster than the watcher looks. Without it, libc writes zeros."""
    return {"fallocate": [ret(errno(_EOPNOTSUPP))]}


def _fcntl_rule() -> List[Instruction]:
    command = load(argument(1))
    refused = returns_if_equal(_WATCHING_OTHERS, errno(_EINVAL))
    return [command, *refused, *returns_if_equal((_F_SETPIPE_SZ,), errno(_EPERM)), ret(ALLOW)]


def _setsockopt_rule() -> List[Instruction]:
    options = (_SO_ATTACH_FILTER, _SO_ATTACH_BPF, _SO_REUSEPORT_CBPF, _SO_REUSEPORT_EBPF, _SO_ZEROCOPY)
    ignored = returns_if_equal((_SO_SNDBUF, _SO_SNDBUFFORCE), errno(0))
    of_sockets = [load(argument(2)), *returns_if_equal(options, errno(_EPERM)), *ignored, ret(ALLOW)]
    return [load(argument(1)), Instruction(JEQ, 0, len(of_sockets), _SOL_SOCKET), *of_sockets, ret(ALLOW)]


def _mmap_rule() -> List[Instruction]:
    """Large shared anonymous mappings are reported: they exist as long as any page is mapped anywhere."""
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
