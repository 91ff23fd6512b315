"""The filter, interpreted: the verdict for every system call number and class of arguments, on both architectures."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

import pytest

from warmcell.cage.guest_entry import recipe
from warmcell.cage.linux import landlock, seccomp, syscall_numbers
from warmcell.cage.linux.seccomp import Profile
from warmcell.cage.plan import LaunchPlan

_KILL, _ALLOW, _NOTIFY, _ERRNO = 0x80000000, 0x7FFF0000, 0x7FC00000, 0x00050000
_WITHOUT_EFFECT = _ERRNO  # success, and the call is not made
EPERM, EINVAL, ENOTTY, ENOSYS = (_ERRNO | number for number in (1, 22, 25, 38))
EPROTONOSUPPORT, EOPNOTSUPP, EAFNOSUPPORT = (_ERRNO | number for number in (93, 95, 97))
_REFUSED = (EPERM, EINVAL, ENOTTY, ENOSYS, EPROTONOSUPPORT, EOPNOTSUPP, EAFNOSUPPORT)
_ARCHITECTURES = {"x86_64": (0xC000003E, syscall_numbers.X86_64), "aarch64": (0xC00000B7, syscall_numbers.AARCH64)}
_HIGHEST = 700


class Filter:
    """A compiled filter and a small interpreter of classic BPF for it."""

    def __init__(self, program: bytes, architecture: int, numbers: dict[str, int]) -> None:
        self._program = list(struct.iter_unpack("=HBBI", program))
        self._architecture = architecture
        self.numbers = numbers
        self.steps = 0

    def verdict(self, number: int | str, *arguments: int, architecture: int | None = None) -> int:
        nr = self.numbers[number] if isinstance(number, str) else number
        words = [*arguments, *([0] * (6 - len(arguments)))]
        chosen = self._architecture if architecture is None else architecture
        masked = [word & (1 << 64) - 1 for word in words]
        return self._run(struct.pack("=IIQ6Q", nr & 0xFFFFFFFF, chosen, 0x7FFF0000, *masked))

    def _run(self, data: bytes) -> int:
        accumulator = position = self.steps = 0
        while True:
            code, if_true, if_false, value = self._program[position]
            position += 1
            self.steps += 1
            if code == 0x20:
                (accumulator,) = struct.unpack_from("=I", data, value)
            elif code == 0x54:
                accumulator &= value
            elif code == 0x05:
                position += value
            elif code == 0x06:
                return int(value)
            else:
                tests = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}
                position += if_true if tests[code] else if_false


#: Spawning, internet and the kind of cage in all combinations; what else there is, on and off with them.
_PROFILES = [Profile(*flags, *flags[:2]) for flags in itertools.product((False, True), repeat=3)]


@pytest.fixture(params=sorted(_ARCHITECTURES))
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setattr(seccomp, "MACHINE", name)
    monkeypatch.setattr(seccomp, "NUMBERS", _ARCHITECTURES[name][1])
    return name


def _filter(machine: str, profile: Profile) -> Filter:
    return Filter(seccomp.compile_filter(profile), *_ARCHITECTURES[machine])


def _names(text: str, filter_: Filter) -> list[str]:
    return [name for name in text.split() if name in filter_.numbers]


@pytest.mark.parametrize("profile", _PROFILES)
def test_every_call_is_found_in_few_steps(machine: str, profile: Profile) -> None:
    """The kernel evaluates every number when the filter is installed, and each cell waits for that."""
    filter_ = _filter(machine, profile)
    for number in range(_HIGHEST):
        if filter_.verdict(number) == _ALLOW == filter_.verdict(number, *[(1 << 64) - 1] * 6):
            assert filter_.steps <= 20, number


@pytest.mark.claim("WC-KR-1")
@pytest.mark.parametrize("profile", _PROFILES, ids=lambda profile: "".join("FT"[flag] for flag in profile))
def test_every_number_has_a_verdict(machine: str, profile: Profile) -> None:
    """Nothing is allowed by accident: calls that are not listed get ENOSYS, whatever their arguments."""
    filter_ = _filter(machine, profile)
    known = {number: name for name, number in filter_.numbers.items()}
    special = seccomp.rules(profile)
    for number in range(_HIGHEST):
        name = known.get(number, "")
        verdict = filter_.verdict(number)
        if name in special:
            assert verdict in (_ALLOW, _NOTIFY, _WITHOUT_EFFECT, *_REFUSED), name
        else:
            expected = _ALLOW if name in seccomp._ALLOWED else ENOSYS
            assert verdict == filter_.verdict(number, *[(1 << 64) - 1] * 6) == expected, name or number


@pytest.mark.claim("WC-KR-1")
@pytest.mark.parametrize("profile", _PROFILES, ids=lambda profile: "".join("FT"[flag] for flag in profile))
def test_dangerous_calls_never_pass(machine: str, profile: Profile) -> None:
    filter_ = _filter(machine, profile)
    dangerous = _names(
        "mount umount2 pivot_root chroot fsopen fsconfig fsmount fspick move_mount open_tree mount_setattr open_tree_attr "
        "statmount listmount unshare setns ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp bpf kexec_load "
        "kexec_file_load init_module finit_module delete_module open_by_handle_at quotactl quotactl_fd swapon swapoff "
        "reboot settimeofday clock_settime iopl ioperm syslog sethostname setdomainname perf_event_open userfaultfd "
        "io_uring_setup io_uring_enter io_uring_register add_key request_key keyctl memfd_secret seccomp clone3 "
        "process_madvise move_pages migrate_pages mbind set_mempolicy fanotify_init fanotify_mark modify_ldt vhangup acct "
        "lookup_dcookie nfsservctl uselib _sysctl create_module io_setup io_submit lsm_set_self_attr file_setattr",
        filter_,
    )
    assert len(dangerous) > 60
    if profile.shows_host or not profile.is_caged:
        dangerous.append("openat2")  # its mode, and so a set-id bit, is behind a pointer
    for name in dangerous:
        for value in (0, 1, (1 << 32) - 1, (1 << 64) - 1, 1 << 32):
            assert filter_.verdict(name, *[value] * 6) in (EPERM, ENOSYS, _NOTIFY), name


@pytest.mark.claim("WC-KR-1")
def test_tracing_spares_init_and_the_agent(machine: str) -> None:
    attach, cont, high = 16, 7, 1 << 32
    for has_agent, keepers in ((False, (1,)), (True, (1, 2))):
        filter_ = _filter(machine, Profile(True, has_agent=has_agent, allow_tracing=True))
        for request in (0, high):
            assert filter_.verdict("ptrace", request, 5) == _NOTIFY  # the manager looks at the parent
        for pid in (1, 2, 3, high | 1):
            expected = EPERM if pid % high in keepers else _ALLOW
            for request in (attach, cont):
                assert filter_.verdict("ptrace", request, pid) == expected
            for name in ("process_vm_readv", "process_vm_writev"):
                assert filter_.verdict(name, pid) == expected
        for name in ("pidfd_getfd", "kcmp"):
            assert filter_.verdict(name, 3) == _NOTIFY
        assert filter_.verdict("personality", 0x40000) == _ALLOW
    assert _filter(machine, Profile(True)).verdict("personality", 0x40000) == EPERM


@pytest.mark.claim("WC-KR-1")
def test_foreign_architectures_are_killed(machine: str) -> None:
    filter_ = _filter(machine, Profile(True))
    ours = _ARCHITECTURES[machine][0]
    for architecture in (0x40000003, 0xC000003E, 0x40000028, 0xC00000B7, 0x14, 0, 0xFFFFFFFF, 0xC00000F3):
        for number in (0, 1, 20, 39, 59, 165, 11):
            verdict = filter_.verdict(number, architecture=architecture)
            assert (verdict == _KILL) == (architecture != ours)


@pytest.mark.claim("WC-KR-1")
def test_x32_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "MACHINE", "x86_64")
    monkeypatch.setattr(seccomp, "NUMBERS", syscall_numbers.X86_64)
    filter_ = _filter("x86_64", Profile(True))
    for number in (*range(0, _HIGHEST, 7), 0x3FFFFFFF):
        assert filter_.verdict(0x40000000 | number) == _KILL
    assert filter_.verdict(0xFFFFFFFF) == _KILL


@pytest.mark.claim("WC-KR-2")
def test_processes_and_threads(machine: str) -> None:
    thread = 0x3D0F00  # what libc asks for
    namespaces = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80)
    for allow_spawn in (False, True):
        filter_ = _filter(machine, Profile(allow_spawn))
        assert filter_.verdict("clone", thread) == _ALLOW
        assert filter_.verdict("clone", thread & ~0x400) == EPERM  # a thread with descriptors of its own
        assert filter_.verdict("clone", 17) == (_ALLOW if allow_spawn else _NOTIFY)
        assert filter_.verdict("clone", 0x4111) == (_ALLOW if allow_spawn else _NOTIFY)
        assert filter_.verdict("clone", 0x8000 | 17) == (EPERM if allow_spawn else _NOTIFY)  # a child of the manager
        for flag in namespaces:
            assert filter_.verdict("clone", flag | 17) == _NOTIFY
            assert filter_.verdict("clone", flag | thread) == _NOTIFY
            assert filter_.verdict("clone", 1 << 32 | flag) == _NOTIFY
        for name in _names("fork vfork execve execveat", filter_):
            assert filter_.verdict(name) == (_ALLOW if allow_spawn else _NOTIFY)
        assert filter_.verdict("clone3", 1, 88) == ENOSYS


def _verdicts(filter_: Filter, family: int, kinds: Sequence[int], protocols: Sequence[int]) -> set[int]:
    flags = (0, 0x800, 0x80000, 0x80800)
    return {
        filter_.verdict("socket", family, kind | flag, protocol)
        for kind in kinds
        for protocol in protocols
        for flag in flags
    }


@pytest.mark.claim("WC-KR-1")
@pytest.mark.parametrize("profile", _PROFILES, ids=lambda profile: "".join("FT"[flag] for flag in profile))
def test_sockets(machine: str, profile: Profile) -> None:
    filter_ = _filter(machine, profile)
    kinds = range(16)
    for family in range(64):
        if family not in (1, 2, 10, 16):
            assert _ALLOW not in {filter_.verdict("socket", family, kind, 0) for kind in (*range(6), 10, 0x80801)}
    for family in (2, 10):
        ordinary = _verdicts(filter_, family, (1, 2), (0, 1, 6, 17, 58))
        assert ordinary == {_ALLOW if profile.allow_internet else EAFNOSUPPORT}
        assert _ALLOW not in _verdicts(filter_, family, [k for k in kinds if k not in (1, 2)], (0, 1, 6, 17, 255))
        assert _ALLOW not in _verdicts(filter_, family, (1, 2), (33, 115, 132, 136, 256, 262, 255))
    assert _ALLOW not in _verdicts(filter_, 16, kinds, range(1, 32))
    if not profile.allow_unix:
        assert _ALLOW not in _verdicts(filter_, 1, kinds, (0,))
    elif profile.shows_host:
        assert _ALLOW not in _verdicts(filter_, 1, (2, 3), (0,))
    else:
        assert _verdicts(filter_, 1, (1, 2, 5), (0,)) == {_ALLOW}
    for family in (0, 2, 10, 16, 17, 38):
        assert filter_.verdict("socketpair", family, 1) == EPERM


@pytest.mark.needs("linux")
@pytest.mark.attack("NW-03")
@pytest.mark.parametrize(
    ("version", "network", "verdict"), [(5, "host", EAFNOSUPPORT), (6, "host", _ALLOW), (1, "loopback", _ALLOW)]
)
def test_abstract_sockets_of_the_host_need_a_scope(
    monkeypatch: pytest.MonkeyPatch, version: int, network: str, verdict: int
) -> None:
    monkeypatch.setattr(landlock, "landlock_version", lambda: version)
    program = recipe._filter(LaunchPlan(network=network))
    assert Filter(program, *_ARCHITECTURES[seccomp.MACHINE]).verdict("socket", 1, 1, 0) == verdict


@pytest.mark.claim("WC-KR-1")
@pytest.mark.claim("WC-KR-4")
def test_arguments_that_are_looked_at(machine: str) -> None:
    filter_ = _filter(machine, Profile(True))
    for request in (0x5412, 0x541C, 1 << 32 | 0x5412):
        assert filter_.verdict("ioctl", 0, request) == EPERM
    for request in (0x5401, 0x5413, 0x541B, 0x8912):
        assert filter_.verdict("ioctl", 0, request) == _ALLOW
    for option in (35, 22, 4, 62, 0x59616D61):
        assert filter_.verdict("prctl", option) == EPERM
    for option in (1, 15, 38, 36, 77, 0x41555856):
        assert filter_.verdict("prctl", option) == _ALLOW
    for option in (78, 79, 0x53564D41, 1 << 31):
        assert filter_.verdict("prctl", option) == seccomp.errno(22)
    assert filter_.verdict("personality", 0x0040000) == EPERM and filter_.verdict("personality", 0xFFFFFFFF) == _ALLOW
    assert filter_.verdict("close_range", 3, 9, 2) == EPERM and filter_.verdict("close_range", 3, 9, 4) == _ALLOW
    assert filter_.verdict("connect", 3, 1, 16) == _NOTIFY
    assert filter_.verdict("sendto", 3, 1, 1, 0, 0, 0) == _ALLOW
    for address in (1, 1 << 32, 0x7FFF00000000):
        assert filter_.verdict("sendto", 3, 1, 1, 0, address, 16) == _NOTIFY


@pytest.mark.claim("WC-FS-2")
@pytest.mark.claim("WC-FS-4")
def test_set_id_bits_and_devices(machine: str) -> None:
    filter_ = _filter(machine, Profile(True, shows_host=True))
    at = {
        "chmod": 1,
        "fchmod": 1,
        "fchmodat": 2,
        "fchmodat2": 2,
        "mkdir": 1,
        "mkdirat": 2,
        "creat": 1,
        "mknod": 1,
        "mknodat": 2,
    }
    for name in _names(" ".join(at), filter_):
        for mode in (0o4755, 0o2755, 0o6000, 0o7777):
            assert filter_.verdict(name, *[0] * at[name], mode) == EPERM, name
        for mode in (0o755, 0o1777, 0o644, 0):
            assert filter_.verdict(name, *[0] * at[name], mode) == _ALLOW, name
    for name, flags in (("open", 1), ("openat", 2)):
        if name in filter_.numbers:
            for creating in (0o100, 0o20200000, 0o101):
                assert filter_.verdict(name, *[0] * flags, creating, 0o4755) == EPERM
                assert filter_.verdict(name, *[0] * flags, creating, 0o644) == _ALLOW
            assert filter_.verdict(name, *[0] * flags, 0, 0o4755) == _ALLOW  # the mode is not looked at
    for name, index in (("mknod", 1), ("mknodat", 2)):
        if name in filter_.numbers:
            for kind in (0o020000, 0o060000):
                assert filter_.verdict(name, *[0] * index, kind | 0o666) == EPERM
            for kind in (0o010000, 0o100000, 0o140000, 0):
                assert filter_.verdict(name, *[0] * index, kind | 0o666) == _ALLOW


@pytest.mark.claim("WC-PR-1")
def test_init_is_out_of_reach(machine: str) -> None:
    filter_ = _filter(machine, Profile(True))
    for name in ("prlimit64", "sched_setscheduler", "sched_setparam", "sched_setattr", "sched_setaffinity"):
        assert filter_.verdict(name, 1) == EPERM and filter_.verdict(name, 1 << 32 | 1) == EPERM
        assert filter_.verdict(name, 0) == _ALLOW and filter_.verdict(name, 77) == _ALLOW
    for name, process in (("setpriority", 0), ("ioprio_set", 1)):
        assert filter_.verdict(name, process, 0) == _ALLOW and filter_.verdict(name, process, 1) == EPERM
        for which in {0, 1, 2, 3} - {process}:
            assert filter_.verdict(name, which, 0) == EPERM


def test_hints_reach_no_memory_of_others(machine: str) -> None:
    """KSM merges pages with those of other programs, and the page cache is that of all."""
    filter_ = _filter(machine, Profile(True))
    assert filter_.verdict("madvise", 1, 1, 12) == EINVAL
    assert {filter_.verdict("madvise", 1, 1, advice) for advice in (*range(12), *range(13, 26))} == {_ALLOW}
    assert filter_.verdict("fadvise64", 3, 0, 0, 4) == seccomp.errno(0)
    assert {filter_.verdict("fadvise64", 3, 0, 0, advice) for advice in (0, 1, 2, 3, 5)} == {_ALLOW}


@pytest.mark.claim("WC-FS-2")
def test_without_namespaces_more_is_refused(machine: str) -> None:
    filter_ = _filter(machine, Profile(True, allow_internet=False, is_caged=False))
    for name in _names(
        "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat setxattr lsetxattr "
        "fsetxattr removexattr lremovexattr fremovexattr shmget shmat semget msgget mq_open sched_setaffinity setpriority",
        filter_,
    ):
        assert filter_.verdict(name, 0, 0o644, 0o644) == EPERM, name
    for name in _names("setxattrat removexattrat file_setattr", filter_):
        assert filter_.verdict(name) == ENOSYS
    assert filter_.verdict("prlimit64", 0) == _ALLOW and filter_.verdict("prlimit64", 5) == EPERM
    for request in (0x40086602, 0x401C5820, 0x40087602, 0x80087601, 0xC020660B, 1):
        assert filter_.verdict("ioctl", 0, request) == ENOTTY
    for request in (0x5401, 0x541B, 0x5421, 0x80045430, 0x8912):
        assert filter_.verdict("ioctl", 0, request) == _ALLOW
    assert filter_.verdict("ioctl", 0, 0x5412) == EPERM
    for name in _names("getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr name_to_handle_at", filter_):
        assert filter_.verdict(name) == EOPNOTSUPP


@pytest.mark.claim("WC-RX-3")
def test_ioctls_of_file_systems_are_refused_on_disks_of_the_host(machine: str) -> None:
    """FS_IOC_RESVSP, FS_IOC_RESVSP64 and FS_IOC_ZERO_RANGE allocate; XFS_IOC_FSSETXATTR makes writes allocate more;
    BTRFS_IOC_SUBVOL_CREATE, _SNAP_CREATE and _SNAP_CREATE_V2. FICLONE and FICLONERANGE stay allowed.
    """
    plain = _filter(machine, Profile(True))
    for has_agent in (False, True):
        filter_ = _filter(machine, Profile(True, shows_host=True, has_host_disk=True, has_agent=has_agent))
        for request in (0x40305828, 0x4030582A, 0x40305839, 0x401C5820, 0x5000940E, 0x50009401, 0x50009417):
            assert filter_.verdict("ioctl", 3, request) == filter_.verdict("ioctl", 3, 1 << 32 | request) == ENOTTY
            assert plain.verdict("ioctl", 3, request) == _ALLOW
        for request in (0x40049409, 0x4020940D, 0x5401, 0x541B, 0x80045430, 0x8912, 0xC020462A):
            assert filter_.verdict("ioctl", 3, request) == _ALLOW
        assert filter_.verdict("ioctl", 0, 0x5412) == EPERM


def test_the_filter_is_as_long_as_the_kernel_takes(machine: str) -> None:
    for profile in _PROFILES:
        assert len(seccomp.compile_filter(profile)) // 8 <= 4096


def test_an_unknown_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "NUMBERS", {})
    with pytest.raises(OSError, match="no system call table"):
        seccomp.compile_filter(Profile(True))


def test_the_tables_agree_with_the_running_kernel() -> None:
    """Where this architecture's numbers are known from elsewhere."""
    assert (
        syscall_numbers.X86_64["openat"],
        syscall_numbers.X86_64["clone3"],
        syscall_numbers.X86_64["landlock_restrict_self"],
    ) == (
        257,
        435,
        446,
    )
    assert (
        syscall_numbers.AARCH64["openat"],
        syscall_numbers.AARCH64["clone3"],
        syscall_numbers.AARCH64["execve"],
    ) == (56, 435, 221)
    assert syscall_numbers.X86_64["rseq"] == 334 and syscall_numbers.AARCH64["rseq"] == 293
    shared = {name for name, number in syscall_numbers.X86_64.items() if number >= 424}
    assert all(
        syscall_numbers.AARCH64[name] == syscall_numbers.X86_64[name]
        for name in shared
        if name in syscall_numbers.AARCH64
    )


@pytest.mark.claim("WC-RX-7")
def test_shared_resources_are_refused_or_notified(machine: str) -> None:
    filter_ = _filter(machine, Profile(True))
    assert [filter_.verdict("fcntl", 0, command) for command in (1024, 1026, 1040)] == [EINVAL] * 3
    assert filter_.verdict("fcntl", 0, 1031) == EPERM
    assert {filter_.verdict("fcntl", 0, command) for command in (*range(40), 1025, 1030, 1032, 1033)} == {_ALLOW}
    assert {filter_.verdict("setsockopt", 0, 1, option) for option in (26, 50, 51, 52, 60)} == {EPERM}
    assert {filter_.verdict("setsockopt", 0, level, option) for level, option in ((1, 2), (6, 26), (0, 60))} == {_ALLOW}
    large = [(41, 6), (41, 43), (41, 46), (41, 48), (6, 14), (6, 32), (6, 38)]
    assert {filter_.verdict("setsockopt", 0, level, option) for level, option in large} == {seccomp.errno(92)}
    small = [(0, 6), (0, 46), (17, 14), (41, 14), (41, 20), (41, 26), (41, 42), (6, 1), (6, 6), (6, 43)]
    assert {filter_.verdict("setsockopt", 0, level, option) for level, option in small} == {_ALLOW}
    assert filter_.verdict("shmctl", 0, 11) == EPERM and filter_.verdict("shmctl", 0, 0) == _ALLOW
    assert filter_.verdict("flock") == filter_.verdict("inotify_add_watch") == _NOTIFY
    assert filter_.verdict("fallocate") == _ALLOW
    assert _filter(machine, Profile(True, has_host_disk=True)).verdict("fallocate") == EOPNOTSUPP
    for name in ("setxattr", "lsetxattr", "fsetxattr"):
        for has_host_disk, action in ((False, _ALLOW), (True, _NOTIFY)):
            rules = _filter(machine, Profile(True, has_host_disk=has_host_disk))
            verdicts = [rules.verdict(name, 1, 1, 1, size) for size in (0, 1024, 1025, 1 << 16)]
            assert verdicts == [action] * 2 + [EOPNOTSUPP] * 2
    landlock = _filter(machine, Profile(True, is_caged=False))
    assert landlock.verdict("flock") == _NOTIFY and landlock.verdict("inotify_init1") == ENOSYS


@pytest.mark.parametrize("profile", _PROFILES, ids=lambda profile: "".join("FT"[flag] for flag in profile))
def test_disks_of_the_host_are_not_flushed(machine: str, profile: Profile) -> None:
    """Every program that waits for one of them would wait for a guest that does this in a loop."""
    filter_ = _filter(machine, profile)
    assert {filter_.verdict(name, 3) for name in ("sync", "syncfs")} == {_WITHOUT_EFFECT}
    assert {filter_.verdict(name, 3) for name in ("fsync", "fdatasync", "sync_file_range")} == {_ALLOW}


@pytest.mark.claim("WC-RX-2")
def test_uncountable_memory_is_refused_or_notified(machine: str) -> None:
    counted, watched = _filter(machine, Profile(True)), _filter(machine, Profile(True, is_watched=True))
    for name in ("vmsplice", "splice", "tee", "sendfile"):
        assert (counted.verdict(name), watched.verdict(name)) == (_ALLOW, EINVAL)
    for name in ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"):
        assert (counted.verdict(name), watched.verdict(name)) == (_ALLOW, ENOSYS)
    for command in (37, 38):  # F_OFD_SETLK, F_OFD_SETLKW
        assert (counted.verdict("fcntl", 0, command), watched.verdict("fcntl", 0, command)) == (_ALLOW, EINVAL)
    shared, private, of_a_file = 0x21, 0x22, 0x01
    for length in (1, 1 << 16, (1 << 16) + 1, 1 << 32, (1 << 32) + 1):
        expected = _NOTIFY if length > 1 << 16 else _ALLOW
        assert (
            watched.verdict("mmap", 0, length, 3, shared) == watched.verdict("mmap", 0, length, 3, 0x4021) == expected
        )
        assert {watched.verdict("mmap", 0, length, 3, flags) for flags in (private, of_a_file)} == {_ALLOW}
        assert counted.verdict("mmap", 0, length, 3, shared) == _ALLOW
    huge = seccomp.errno(12)
    for filter_ in (counted, watched):
        assert (
            filter_.verdict("mmap", 0, 1 << 21, 3, 0x40022)
            == filter_.verdict("mmap", 0, 1 << 21, 3, 0x54040021)
            == huge
        )
        assert (
            filter_.verdict("shmget", 0, 1 << 21, 0o4600) == huge and filter_.verdict("shmget", 0, 1, 0o1600) == _ALLOW
        )
    assert counted.verdict("memfd_create", 0, 5) == EINVAL and counted.verdict("memfd_create", 0, 1) == _ALLOW
