"""The system call filter: an allow-list, written as data, compiled to BPF, installed last.

Unknown calls get ENOSYS, so that libc falls back; known dangerous ones get EPERM. Calls of other architectures, and of
x32, kill the process. Calls whose refusal is worth reporting go to the manager, which refuses and records them.
"""

from __future__ import annotations

import struct

from ..fast_imports import lru_cache
from ..records import NamedTuple
from . import seccomp_rules as bpf
from .call_list import CallList, Field, Value
from .namespaces import AGENT_PID, pids_of_keepers
from .seccomp_rules import ALLOW, AND, JEQ, JSET, NOTIFY, Instruction, all_but, argument, errno, load, only, ret
from .syscalls import MACHINE, NUMBERS, PR_SET_NO_NEW_PRIVS, call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Tuple

_ALLOWED = """
read write open openat close stat fstat lstat newfstatat statx poll ppoll lseek mmap mprotect munmap brk
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo rt_sigsuspend
sigaltstack pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2 access faccessat faccessat2 pipe pipe2
select pselect6 sched_yield mremap msync mincore madvise mlock mlock2 munlock mlockall munlockall
shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl
mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
dup dup2 dup3 pause nanosleep clock_nanosleep getitimer alarm setitimer timer_create timer_settime timer_gettime
timer_getoverrun timer_delete timerfd_create timerfd_settime timerfd_gettime
getpid gettid getppid getpgid setpgid getpgrp getsid setsid sendfile connect accept accept4 sendto recvfrom sendmsg
recvmsg sendmmsg recvmmsg shutdown bind listen getsockname getpeername setsockopt getsockopt
exit exit_group wait4 waitid kill tkill tgkill uname fcntl flock fsync fdatasync sync syncfs sync_file_range truncate
ftruncate fallocate getdents getdents64 getcwd chdir fchdir rename renameat renameat2 mkdir mkdirat rmdir creat
link linkat unlink unlinkat symlink symlinkat readlink readlinkat chmod fchmod fchmodat fchmodat2 chown fchown lchown
fchownat umask time gettimeofday getrlimit setrlimit prlimit64 getrusage sysinfo times
getuid getgid geteuid getegid setuid setgid setreuid setregid setresuid getresuid setresgid getresgid setfsuid setfsgid
getgroups setgroups capget capset
utime utimes utimensat futimesat statfs fstatfs ustat getpriority setpriority ioprio_get ioprio_set
sched_setparam sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max sched_get_priority_min
sched_rr_get_interval sched_setaffinity sched_getaffinity sched_setattr sched_getattr getcpu
arch_prctl set_tid_address set_robust_list get_robust_list futex futex_waitv futex_wake futex_wait futex_requeue
rseq membarrier restart_syscall getrandom memfd_create copy_file_range splice tee vmsplice
epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2 signalfd signalfd4
inotify_init inotify_init1 inotify_add_watch inotify_rm_watch readahead fadvise64 mseal
setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr
fremovexattr clock_gettime clock_getres close_range pidfd_open pidfd_send_signal pkey_mprotect pkey_alloc pkey_free
landlock_create_ruleset landlock_add_rule landlock_restrict_self get_mempolicy openat2 process_mrelease
map_shadow_stack remap_file_pages name_to_handle_at
""".split()

#: Refused with EPERM, not reported: ordinary programs try these and continue without them.
_REFUSED = """
io_uring_setup io_uring_enter io_uring_register perf_event_open userfaultfd memfd_secret
add_key request_key keyctl mbind set_mempolicy set_mempolicy_home_node migrate_pages move_pages
process_madvise fanotify_init fanotify_mark seccomp adjtimex clock_adjtime vhangup acct lookup_dcookie modify_ldt
pciconfig_read pciconfig_write pciconfig_iobase quotactl_fd
io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents statmount listmount open_tree_attr
""".split()

#: Refused with EPERM and reported: no program calls these by accident.
_REPORTED = """
mount umount2 pivot_root chroot fsopen fsconfig fsmount fspick move_mount open_tree mount_setattr
unshare setns ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp
bpf kexec_load kexec_file_load init_module finit_module delete_module open_by_handle_at
quotactl swapon swapoff reboot settimeofday clock_settime stime iopl ioperm syslog sethostname setdomainname nfsservctl
""".split()

#: They read attributes of files outside the policy, which Landlock does not cover; refused with EOPNOTSUPP.
_WITHOUT_ATTRIBUTES = "getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr name_to_handle_at".split()

#: Refused where the guest shares the host's root: Landlock covers neither metadata nor the IPC namespace.
_REFUSED_WITHOUT_NAMESPACES = """
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat
setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink
sched_setparam sched_setscheduler sched_setaffinity sched_setattr setpriority ioprio_set
""".split()

#: A guest that is root in its cage has one user and no capabilities. Calls that would change either succeed without
#: effect, so that package managers and their scripts work.
_OF_ROOT = """
chown fchown lchown fchownat setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset
""".split()

_SPAWN = ("fork", "vfork", "execve", "execveat")

_CLONE_NAMESPACES = 0x7E020080  # every CLONE_NEW* flag, the time namespace's included
_CLONE_PARENT, _CLONE_THREAD = 0x8000, 0x00010000
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_TYPE_MASK, _SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW = 0xF, 1, 2, 3
_COMMON_PROTOCOLS = (0, 1, 6, 17, 58)  # default, ICMP, TCP, UDP, ICMPv6
_S_IFMT, _S_IFCHR, _S_IFBLK = 0o170000, 0o020000, 0o060000
#: Pids that reach the agent of a live cage: its own, its process group's, and "every process".
_PIDS_OF_AGENT = (AGENT_PID, 0x1_0000_0000 - AGENT_PID, 0xFFFFFFFF)
_SIGNALLING = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open")
_SET_ID_BITS = 0o6000
_CREATING = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE: without them open() ignores its mode
_CLOSE_RANGE_UNSHARE, _CLONE_FILES = 2, 0x400
_OF_TERMINALS, _OF_SOCKETS = 0x5400, 0x8900  # the kinds of ioctl that programs need; others concern files
#: Kinds of ioctl that allocate like fallocate (FS_IOC_RESVSP64), or make subvolumes and snapshots of btrfs: a snapshot
#: may show the whole subvolume, and a read-only one cannot be removed as files are. FICLONE and FICLONERANGE only copy.
_OF_FILE_SYSTEMS, _FICLONE, _FICLONERANGE = (0x5800, 0x9400), 0x40049409, 0x4020940D
#: TIOCSTI and TIOCLINUX inject input; TIOCSETD loads line disciplines, which are rarely used and often broken.
_REFUSED_OF_TERMINALS = (0x5412, 0x541C, 0x5423)
_PERSONALITIES = (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)
_WITHOUT_RANDOM_ADDRESSES = (0x40000, 0x40008)
_PTRACE_TRACEME = 0
_PR_SET_MM, _PR_SET_SECCOMP, _PR_SET_DUMPABLE, _PR_SCHED_CORE, _PR_SET_PTRACER = 35, 22, 4, 62, 0x59616D61
#: The first option of prctl() after the known ones, and a harmless one with a large number.
_FIRST_UNKNOWN_OPTION, _PR_GET_AUXV = 78, 0x41555856
_F_SETOWN, _F_SETOWN_EX, _FIOSETOWN, _SIOCSPGRP = 8, 15, 0x8901, 0x8902

_EPERM, _EINVAL, _ENOTTY, _ENOSYS, _EPROTONOSUPPORT, _EOPNOTSUPP, _EAFNOSUPPORT = 1, 22, 25, 38, 93, 95, 97

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
#: add_key, request_key and keyctl of x86_64 and x32, i386, aarch64, arm.
_KEYRING_CALLS = (
    (0xC000003E, (248, 249, 250)),
    (0x40000003, (286, 287, 288)),
    (0xC00000B7, (217, 218, 219)),
    (0x40000028, (309, 310, 311)),
)

_MODE_FILTER, _SET_MODE_FILTER, _FLAG_NEW_LISTENER, _FLAG_WAIT_KILLABLE = 2, 1, 8, 32


def _open_rule(flags: int, mode: int) -> List[Instruction]:
    """open() may not create files with set-id bits."""
    look_at_mode = bpf.without_bits(mode, _SET_ID_BITS)
    return [load(argument(flags)), Instruction(JSET, 1, 0, _CREATING), ret(ALLOW), *look_at_mode]


def _ioctl_rule(profile: Profile) -> List[Instruction]:
    """Without namespaces only ioctls of terminals and sockets: those of files change and reveal what Landlock does not
    cover.
    """
    rule = [load(argument(1)), *bpf.returns_if_equal(_REFUSED_OF_TERMINALS, errno(_EPERM))]
    kind = Instruction(AND, 0, 0, 0xFF00)
    if not profile.is_caged:
        return [*rule, kind, *bpf.returns_if_equal((_OF_TERMINALS, _OF_SOCKETS), ALLOW), ret(errno(_ENOTTY))]
    if profile.has_host_disk:
        rule += bpf.returns_if_equal((_FICLONE, _FICLONERANGE), ALLOW)
        rule += [kind, *bpf.returns_if_equal(_OF_FILE_SYSTEMS, errno(_ENOTTY))]
    return [*rule, ret(ALLOW)]


def _mknod_rule(index: int) -> List[Instruction]:
    """Regular files, FIFOs and sockets; no devices, no set-id bits."""
    rule = [load(argument(index)), *bpf.returns_if_any_bit(_SET_ID_BITS, errno(_EPERM))]
    rule += [Instruction(AND, 0, 0, _S_IFMT), *bpf.returns_if_equal((_S_IFCHR, _S_IFBLK), errno(_EPERM))]
    return [*rule, ret(ALLOW)]


def _clone_rule(allow_spawn: bool, report: int) -> List[Instruction]:
    """No namespaces; without `allow_spawn` only threads. Threads must share descriptors, so that all are seen. Children
    must be the caller's own: siblings of the guest would be the manager's, which reaps them for all cells.
    """
    rule = [load(argument(0)), *bpf.returns_if_any_bit(_CLONE_NAMESPACES, report)]
    rule += [Instruction(JSET, 0, 2, _CLONE_THREAD), Instruction(JSET, 1, 0, _CLONE_FILES), ret(errno(_EPERM))]
    if not allow_spawn:
        rule += [Instruction(JSET, 1, 0, _CLONE_THREAD), ret(report)]
    return [*rule, *bpf.returns_if_any_bit(_CLONE_PARENT, errno(_EPERM)), ret(ALLOW)]


def _without_datagrams() -> List[Instruction]:
    masked = [load(argument(1)), Instruction(AND, 0, 0, _SOCK_TYPE_MASK)]
    return [*masked, *bpf.returns_if_equal((_SOCK_DGRAM, _SOCK_RAW), errno(_EPERM)), ret(ALLOW)]


def _socketpair_rule(sees_host: bool) -> List[Instruction]:
    """Datagram sockets of a pair can be sent and connected to other sockets; streams cannot."""
    unix = _without_datagrams() if sees_host else [ret(ALLOW)]
    return [load(argument(0)), Instruction(JEQ, 0, len(unix), _AF_UNIX), *unix, ret(errno(_EPERM))]


def _socket_rule(profile: Profile) -> List[Instruction]:
    """Internet streams and datagrams; unix sockets; netlink's protocol 0, which lists interfaces."""
    refuse = [ret(errno(_EAFNOSUPPORT))]
    plain = [load(argument(1)), Instruction(AND, 0, 0, _SOCK_TYPE_MASK)]
    common = [load(argument(2)), *bpf.returns_if_equal(_COMMON_PROTOCOLS, ALLOW), ret(errno(_EPROTONOSUPPORT))]
    for kind in (_SOCK_STREAM, _SOCK_DGRAM):
        plain += [Instruction(JEQ, 0, len(common), kind), *common]
    plain.append(ret(errno(_EPERM)))
    route = [load(argument(2)), *bpf.returns_if_equal((0,), ALLOW), *refuse]
    unix = _without_datagrams() if profile.shows_host else [ret(ALLOW)]
    rule = [load(argument(0)), Instruction(JEQ, 0, len(route), _AF_NETLINK), *route]
    if profile.allow_unix:
        rule += [Instruction(JEQ, 0, len(unix), _AF_UNIX), *unix]
    for family in (_AF_INET, _AF_INET6) if profile.allow_internet else ():
        rule += [Instruction(JEQ, 0, len(plain), family), *plain]
    return [*rule, *refuse]


def _prctl_rule() -> List[Instruction]:
    """Other options get EINVAL, as from an older kernel: PR_FUTEX_HASH takes gigabytes of kernel memory, and PR_SET_VMA
    gives shared memory names, by which the watcher would not know it.

    With PR_SCHED_CORE no process of another guest may run on the second thread of a core beside the guest.
    """
    refused = (_PR_SET_MM, _PR_SET_SECCOMP, _PR_SET_DUMPABLE, _PR_SCHED_CORE, _PR_SET_PTRACER)
    large = [*bpf.returns_if_equal((_PR_GET_AUXV,), ALLOW), ret(errno(_EINVAL))]
    rule = [load(argument(0)), *bpf.returns_if_equal(refused, errno(_EPERM))]
    return [*rule, Instruction(bpf.JGE, 0, len(large), _FIRST_UNKNOWN_OPTION), *large, ret(ALLOW)]


def _owner_rules(table: Dict[str, List[Instruction]]) -> Dict[str, List[Instruction]]:
    """The agent must not become the owner of a descriptor: owners get signals of the guest's choice."""
    owner = [load(argument(2)), *bpf.returns_if_equal(_PIDS_OF_AGENT, errno(_EPERM)), ret(ALLOW)]
    fcntl = [load(argument(1)), *bpf.returns_if_equal((_F_SETOWN_EX,), errno(_EPERM))]
    fcntl += [Instruction(JEQ, 0, len(owner), _F_SETOWN), *owner]
    ioctl = [load(argument(1)), *bpf.returns_if_equal((_FIOSETOWN, _SIOCSPGRP), errno(_EPERM))]
    return {"fcntl": [*fcntl, *table["fcntl"]], "ioctl": [*ioctl, *table["ioctl"]]}


def _of_a_process(which: int, keepers: Tuple[int, ...]) -> List[Instruction]:
    """For calls that take (which, who): single processes that are not keepers, but no groups or users."""
    rule = [load(argument(0)), Instruction(JEQ, 1, 0, which), ret(errno(_EPERM))]
    return [*rule, *all_but(1, keepers)]


def _tracing_rules(keepers: Tuple[int, ...]) -> Dict[str, List[Instruction]]:
    """The agent must be protected from tracers; init is undumpable, so the kernel protects it.

    PTRACE_TRACEME makes the parent the tracer. The manager answers it, and checks that the parent is the guest's.
    """
    ptrace = [load(argument(0)), Instruction(JEQ, 0, 1, _PTRACE_TRACEME), ret(NOTIFY), *all_but(1, keepers)]
    memory = all_but(0, keepers)
    personality = only(0, _PERSONALITIES + _WITHOUT_RANDOM_ADDRESSES)
    return {"ptrace": ptrace, "process_vm_readv": memory, "process_vm_writev": memory, "personality": personality}


def _addressed_send_rule() -> List[Instruction]:
    """sendto() with an address goes to the manager, which examines the destination."""
    low, high = load(argument(4)), load(argument(4) + 4)
    return [low, Instruction(JEQ, 1, 0, 0), ret(NOTIFY), high, Instruction(JEQ, 1, 0, 0), ret(NOTIFY), ret(ALLOW)]


class Profile(NamedTuple):
    """The properties of a guest that its filter depends on."""

    allow_spawn: bool
    #: Internet sockets: harmless in a network namespace of its own.
    allow_internet: bool = True
    #: The guest has its own namespaces; without them more must be refused.
    is_caged: bool = True
    #: Host directories are visible. Files in them outlive the cage, and they may contain host sockets, which unix
    #: datagrams could reach unnoticed, so those are refused.
    shows_host: bool = False
    #: Unix sockets are refused where connections cannot be checked.
    allow_unix: bool = True
    #: Only the watcher counts memory: the manager answers memfd_create with files on a tmpfs, where they are counted.
    is_watched: bool = False
    #: The guest may write to disks of the host.
    has_host_disk: bool = False
    #: A live cage: its first process is the agent, which other programs must not signal or limit.
    has_agent: bool = False
    #: The guest has user 0 in its namespace.
    is_root: bool = False
    #: Debuggers: the guest's processes may trace each other.
    allow_tracing: bool = False


def _no_set_id_bits() -> Dict[str, List[Instruction]]:
    """Files that outlive the cage may not be set-user-id or set-group-id."""
    modes = {"creat": 1, "mkdir": 1, "mkdirat": 2, "chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
    return {
        "openat": _open_rule(2, 3),
        "open": _open_rule(1, 2),
        **{name: bpf.without_bits(index, _SET_ID_BITS) for name, index in modes.items()},
        "openat2": [ret(errno(_ENOSYS))],  # its mode is behind a pointer; libc falls back to openat
    }


def rules(profile: Profile) -> Dict[str, List[Instruction]]:
    """The rules of all calls that are not allowed unconditionally."""
    table = {
        "ioctl": _ioctl_rule(profile),
        "clone": _clone_rule(profile.allow_spawn, NOTIFY),
        "socket": _socket_rule(profile),
        "connect": [ret(NOTIFY)],
        "sendto": _addressed_send_rule(),
        "prctl": _prctl_rule(),
        "close_range": bpf.without_bits(2, _CLOSE_RANGE_UNSHARE),
        "socketpair": _socketpair_rule(profile.shows_host or not profile.is_caged),
        "personality": only(0, _PERSONALITIES),
        "mknod": _mknod_rule(1),
        "mknodat": _mknod_rule(2),
    }
    table = {**bpf.rules_for_all(profile.is_watched), **table, **bpf.rules_for_inodes(profile.is_caged)}
    if profile.has_host_disk:
        table.update(bpf.rules_for_host_disks())
    if profile.is_watched:
        table = {**bpf.rules_without_cgroup(), **table}
    if profile.shows_host or not profile.is_caged:
        table = {**_no_set_id_bits(), **table}
    # Init and the agent have the guest's user: without these rules the guest could starve or limit them.
    keepers = pids_of_keepers(profile.has_agent)
    for name in ("prlimit64", "sched_setscheduler", "sched_setparam", "sched_setattr", "sched_setaffinity"):
        table[name] = all_but(0, keepers)
    table["setpriority"] = _of_a_process(0, keepers)
    table["ioprio_set"] = _of_a_process(1, keepers)
    if profile.has_agent:
        for name in _SIGNALLING:
            table[name] = all_but(0, _PIDS_OF_AGENT)
        # It accepts a directory of /proc too, which a filter cannot examine. Go and libc fall back to kill().
        table["pidfd_send_signal"] = [ret(errno(_ENOSYS))]
        table.update(_owner_rules(table))
    table.update(_same_rule(_SPAWN, ALLOW if profile.allow_spawn else NOTIFY))
    table.update(_same_rule(_REPORTED, NOTIFY))
    table.update(_same_rule(_REFUSED, errno(_EPERM)))
    if profile.allow_tracing:
        table.update(_tracing_rules(keepers))
    if profile.is_root:
        table.update(_same_rule(_OF_ROOT, errno(0)))
    if profile.is_watched:  # the manager makes counted files for it; a keeper cannot
        table["memfd_create"] = [ret(NOTIFY if profile.is_caged else errno(_ENOSYS))]
    if not profile.is_caged:
        table["prlimit64"] = only(0, (0,))
        table.update(_same_rule(_REFUSED_WITHOUT_NAMESPACES, errno(_EPERM)))
        table.update(_same_rule(_WITHOUT_ATTRIBUTES, errno(_EOPNOTSUPP)))
    return table


def _same_rule(names: Iterable[str], action: int) -> Dict[str, List[Instruction]]:
    rule = [ret(action)]
    return {name: rule for name in names}


def compile_filter(profile: Profile) -> bytes:
    """The whole filter as BPF: checks the architecture, then finds the rule of the call by its number."""
    if not NUMBERS:
        raise OSError(38, f"no system call table for {MACHINE}")
    program = [load(bpf.ARCH), Instruction(JEQ, 1, 0, _AUDIT_ARCH[MACHINE]), ret(bpf.KILL), load(bpf.NR)]
    if MACHINE == "x86_64":
        program += [Instruction(bpf.JGE, 0, 1, _X32_BIT), ret(bpf.KILL)]
    table = {**_same_rule(_ALLOWED, ALLOW), **rules(profile)}
    by_number = {NUMBERS[name]: rule for name, rule in table.items() if name in NUMBERS}
    program += bpf.search(_runs(by_number))
    return _pack(program)


def _pack(program: List[Instruction]) -> bytes:
    return struct.pack("=" + "HBBI" * len(program), *[word for instruction in program for word in instruction])


def _runs(by_number: Dict[int, List[Instruction]]) -> List[Tuple[int, List[Instruction]]]:
    """The first number of each run of calls with the same rule; unknown calls get ENOSYS."""
    unknown = [ret(errno(_ENOSYS))]
    runs = [(0, by_number.get(0, unknown))]
    for number in range(1, max(by_number) + 2):
        rule = by_number.get(number, unknown)
        if rule != runs[-1][1]:
            runs.append((number, rule))
    return runs


def refuse_keyrings(calls: CallList) -> None:
    """The only filter around bubblewrap. Keyrings belong to users, not namespaces: a guest could link the caller's
    keyrings to its own, and read their keys.
    """
    calls.begin_step("refuse keyrings")
    program = _keyring_filter()
    header = struct.pack("@HP", len(program) // 8, calls.address(calls.buffer(program)))
    calls.call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    calls.call("prctl", _PR_SET_SECCOMP, _MODE_FILTER, header)


def _keyring_filter() -> bytes:
    """A filter for every architecture whose programs the kernel can run."""
    program = [load(bpf.ARCH)]
    for architecture, numbers in _KEYRING_CALLS:
        refuse = bpf.returns_if_equal(numbers, errno(_EPERM))
        rule = [load(bpf.NR), Instruction(AND, 0, 0, _X32_BIT - 1), *refuse, ret(ALLOW)]
        program += [Instruction(JEQ, 0, len(rule), architecture), *rule]
    return _pack([*program, ret(bpf.KILL)])


def install(calls: CallList, program: bytes, into: Field) -> Value:
    """Install the filter. The result is the descriptor of its notifications."""
    calls.begin_step("install seccomp filter")
    header = struct.pack("@HP", len(program) // 8, calls.address(calls.buffer(program)))
    return calls.call("seccomp", _SET_MODE_FILTER, _FLAG_NEW_LISTENER | _wait_killable(), header, into=into)


@lru_cache(maxsize=1)
def _wait_killable() -> int:
    """The flag if the kernel supports it (Linux 5.19), else 0. The kernel checks flags before the filter."""
    try:
        call("seccomp", _SET_MODE_FILTER, _FLAG_NEW_LISTENER | _FLAG_WAIT_KILLABLE, None)
    except OSError as error:
        return 0 if error.errno == 22 else _FLAG_WAIT_KILLABLE
    return 0
