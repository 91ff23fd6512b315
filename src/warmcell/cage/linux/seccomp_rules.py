"""Classic BPF as data, and filter rules for resources that guests share in spite of their namespaces. Pure module.

The kernel counts some resources per user of the host (pages of pipes, descriptors in flight, pinned memory), exposes
some per inode (leases, events), and does not account some memory at all. Such calls are refused with the error of a
file system or an old kernel that lacks them, so that programs fall back; or they go to the manager, which makes or
counts them.
"""

from __future__ import annotations

from ..records import NamedTuple
from .syscall_numbers import ADDING_ATTRIBUTES, LONGEST_ATTRIBUTE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Sequence, Tuple

KILL, ALLOW, NOTIFY = 0x80000000, 0x7FFF0000, 0x7FC00000


def errno(number: int) -> int:
    """The action that returns an error to the caller."""
    return 0x00050000 | number


# Offsets in struct seccomp_data; arguments have 64 bits, little endian on both architectures.
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
    """A binary search. Each case has the first number that its rule applies to, ascending from 0.

    When a filter is installed, the kernel evaluates it once for every call number: with a linear search that would cost
    each cell more than the rest of the filter.
    """
    if len(cases) == 1:
        return cases[0][1]
    middle = len(cases) // 2
    below, above = search(cases[:middle]), search(cases[middle:])
    first = cases[middle][0]
    if len(below) <= _FARTHEST:
        return [Instruction(JGE, len(below), 0, first), *below, *above]
    return [Instruction(JGE, 0, 1, first), Instruction(JA, 0, 0, len(below)), *below, *above]


_EPERM, _ENOMEM, _EINVAL, _ENOSYS, _ENOPROTOOPT, _EOPNOTSUPP = 1, 12, 22, 38, 92, 95

#: Leases and delegations block others that open a file; F_NOTIFY reports them.
_WATCHING_OTHERS = (1024, 1026, 1040)  # F_SETLEASE, F_NOTIFY, F_SETDELEG
_F_SETPIPE_SZ = 1031
#: F_OFD_SETLK, F_OFD_SETLKW: locks of an open file have no owner, so nothing tells whose memory they take.
_LOCKING_OPEN_FILES = (37, 38)

_SOL_SOCKET = 1
#: Socket filters use up the kernel's memory for compiled filters, which the next cage needs; zero-copy pins pages.
_SO_ATTACH_FILTER, _SO_ATTACH_BPF, _SO_REUSEPORT_CBPF, _SO_REUSEPORT_EBPF, _SO_ZEROCOPY = 26, 50, 51, 52, 60
#: With a larger send buffer, a unix socket can queue megabytes that no file of /proc shows. Setting it succeeds without
#: effect, as on a host with a small net.core.wmem_max, so every queue is limited by net.core.wmem_default.
_SO_SNDBUF, _SO_SNDBUFFORCE = 7, 32
#: By level: options that keep up to net.core.optmem_max (128 kB since Linux 6.8) for each socket, in kernel memory that
#: neither a control group nor the watcher counts. Of IPv6: IPV6_2292PKTOPTIONS, which newer options have replaced, and
#: sources of multicast groups (MCAST_BLOCK_SOURCE, MCAST_JOIN_SOURCE_GROUP, MCAST_MSFILTER). Of TCP: keys (TCP_MD5SIG,
#: TCP_MD5SIG_EXT, TCP_AO_ADD_KEY).
_LARGE_OPTIONS = ((41, (6, 43, 46, 48)), (6, (14, 32, 38)))
_SHM_LOCK = 11

#: Huge pages of the host's pool are taken when they are reserved, and control groups do not count them as memory.
_MAP_HUGETLB, _SHM_HUGETLB, _MFD_HUGETLB = 0x40000, 0o4000, 4

#: Merged pages reveal, by the time that a write takes, what other programs hold that merge theirs, such as virtual
#: machines. Dropping pages of files makes all others read them from the disk again.
_MADV_MERGEABLE, _POSIX_FADV_DONTNEED = 12, 4

_MAP_SHARED_ANONYMOUS = 0x21
#: Smaller mappings of shared anonymous memory are not reported; the watcher counts each as this large.
SMALL_SHARED_MEMORY = 1 << 16

#: They keep pages in pipes and sockets that are no longer mapped or part of a file.
_PINNING = ("vmsplice", "splice", "tee", "sendfile")
#: They write all files of a disk, those of the host included, and other programs wait for that disk meanwhile.
_FLUSHING = ("sync", "syncfs")
#: They store any number of rules in kernel memory.
_LANDLOCK = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")


def rules_for_all(is_watched: bool) -> Dict[str, List[Instruction]]:
    """Rules for every guest. `is_watched`: only the watcher counts its memory."""
    return {
        "fcntl": _fcntl_rule(_WATCHING_OTHERS + (_LOCKING_OPEN_FILES if is_watched else ())),
        "setsockopt": _setsockopt_rule(),
        "shmctl": [load(argument(1)), *returns_if_equal((_SHM_LOCK,), errno(_EPERM)), ret(ALLOW)],
        "mmap": _mmap_rule(is_watched),
        "madvise": [load(argument(2)), *returns_if_equal((_MADV_MERGEABLE,), errno(_EINVAL)), ret(ALLOW)],
        "fadvise64": [load(argument(3)), *returns_if_equal((_POSIX_FADV_DONTNEED,), errno(0)), ret(ALLOW)],
        "shmget": [load(argument(2)), *returns_if_any_bit(_SHM_HUGETLB, errno(_ENOMEM)), ret(ALLOW)],
        "memfd_create": [load(argument(1)), *returns_if_any_bit(_MFD_HUGETLB, errno(_EINVAL)), ret(ALLOW)],
        **{name: [ret(errno(0))] for name in _FLUSHING},
        **_attribute_rules(ALLOW),
    }


def rules_for_inodes(is_caged: bool) -> Dict[str, List[Instruction]]:
    """Events and locks only on the guest's own files, checked by the manager. Without a mount namespace, no events."""
    if is_caged:
        return {name: [ret(NOTIFY)] for name in ("inotify_add_watch", "flock")}
    return {"flock": [ret(NOTIFY)], **{name: [ret(errno(_ENOSYS))] for name in ("inotify_init", "inotify_init1")}}


def rules_without_cgroup() -> Dict[str, List[Instruction]]:
    """Where the watcher counts memory: refuse or report memory that it cannot see."""
    return {
        **{name: [ret(errno(_EINVAL))] for name in _PINNING},
        **{name: [ret(errno(_ENOSYS))] for name in _LANDLOCK},
    }


def rules_for_host_disks() -> Dict[str, List[Instruction]]:
    """fallocate takes gigabytes at once, faster than the watcher can react. Without it, libc writes zeros. The manager
    counts attributes, which no walk sees.
    """
    return {"fallocate": [ret(errno(_EOPNOTSUPP))], **_attribute_rules(NOTIFY)}


def _fcntl_rule(unknown: Sequence[int]) -> List[Instruction]:
    command = load(argument(1))
    refused = returns_if_equal(unknown, errno(_EINVAL))
    return [command, *refused, *returns_if_equal((_F_SETPIPE_SZ,), errno(_EPERM)), ret(ALLOW)]


def _attribute_rules(action: int) -> Dict[str, List[Instruction]]:
    """The action for short attributes. The kernel itself refuses lengths with a bit in the upper half."""
    rule = [load(argument(3)), Instruction(JGE, 0, 1, LONGEST_ATTRIBUTE + 1), ret(errno(_EOPNOTSUPP)), ret(action)]
    return {name: rule for name in ADDING_ATTRIBUTES}


def _setsockopt_rule() -> List[Instruction]:
    options = (_SO_ATTACH_FILTER, _SO_ATTACH_BPF, _SO_REUSEPORT_CBPF, _SO_REUSEPORT_EBPF, _SO_ZEROCOPY)
    ignored = returns_if_equal((_SO_SNDBUF, _SO_SNDBUFFORCE), errno(0))
    of_sockets = [load(argument(2)), *returns_if_equal(options, errno(_EPERM)), *ignored, ret(ALLOW)]
    rule = [load(argument(1)), Instruction(JEQ, 0, len(of_sockets), _SOL_SOCKET), *of_sockets]
    for level, large in _LARGE_OPTIONS:
        of_level = [load(argument(2)), *returns_if_equal(large, errno(_ENOPROTOOPT)), ret(ALLOW)]
        rule += [Instruction(JEQ, 0, len(of_level), level), *of_level]
    return [*rule, ret(ALLOW)]


def _mmap_rule(is_watched: bool) -> List[Instruction]:
    """No huge pages. For the watcher, report large shared anonymous mappings: they exist as long as any page is mapped
    anywhere.
    """
    length = argument(1)
    flags = [load(argument(3)), *returns_if_any_bit(_MAP_HUGETLB, errno(_ENOMEM))]
    if not is_watched:
        return [*flags, ret(ALLOW)]
    return [
        *flags,
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
