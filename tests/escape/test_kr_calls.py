"""KR-01, 02, 04, 05, 06: dangerous system calls fail with an errno, and the guest lives on."""

from __future__ import annotations

import os
import platform
import subprocess

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest

from warmcell.cage.linux.syscalls import NUMBERS

_REFUSED = {"EPERM", "ENOSYS"}


def _each_refused(cage: Cage, names: str) -> None:
    """Every name, with arguments that cannot take effect: bad pointers, no flags, descriptor -1."""
    wanted = [name for name in names.split() if name in NUMBERS]
    body = """
        for name in names:
            attempt(name, lambda: syscall(name, -1, -1, -1, -1, -1, -1))
            attempt(name + ' zeros', lambda: syscall(name, 0, 0, 0, 0, 0, 0))
        print('alive')
        """
    outcome = cage.run(guest(body, names=wanted))
    report = outcome.check_refused()
    assert set(report.values()) <= _REFUSED, {name: end for name, end in report.items() if end not in _REFUSED}
    assert outcome.stdout.endswith("alive\n") and outcome.result.exit_code == 0


@pytest.mark.attack("KR-01")
@pytest.mark.claim("WC-KR-1")
def test_mounting_old_and_new(cage: Cage) -> None:
    _each_refused(
        cage,
        "mount umount2 pivot_root chroot fsopen fsconfig fsmount fspick move_mount open_tree mount_setattr "
        "statmount listmount open_tree_attr quotactl quotactl_fd swapon swapoff",
    )


@pytest.mark.attack("KR-01")
@pytest.mark.claim("WC-KR-1")
def test_mounting_with_arguments_that_mean_it(cage: Cage) -> None:
    body = """
        os.makedirs('/tmp/m')
        attempt('tmpfs', lambda: syscall('mount', b'none', b'/tmp/m', b'tmpfs', 0, None))
        attempt('proc', lambda: syscall('mount', b'none', b'/tmp/m', b'proc', 0, None))
        attempt('bind', lambda: syscall('mount', b'/etc', b'/tmp/m', None, 4096, None))
        attempt('remount /', lambda: syscall('mount', None, b'/', None, 32, None))
        attempt('remount /usr', lambda: syscall('mount', None, b'/usr', None, 32 | 4096, None))
        attempt('umount /proc', lambda: syscall('umount2', b'/proc', 2))
        attempt('umount /dev/null', lambda: syscall('umount2', b'/dev/null', 2))
        attempt('fsopen', lambda: syscall('fsopen', b'tmpfs', 0))
        attempt('open_tree', lambda: syscall('open_tree', -100, b'/usr', 1 | 0x80000))
        attempt('move_mount', lambda: syscall('move_mount', -100, b'/usr', -100, b'/tmp/m', 0))
        attempt('setattr', lambda: syscall('mount_setattr', -100, b'/usr', 0, ctypes.create_string_buffer(32), 32))
        """
    assert set(cage.run(guest(body)).check_refused().values()) <= _REFUSED


@pytest.mark.attack("KR-02")
@pytest.mark.claim("WC-KR-1")
def test_no_new_namespace(cage: Cage) -> None:
    flags = {
        "user": 0x10000000,
        "mount": 0x20000,
        "net": 0x40000000,
        "pid": 0x20000000,
        "ipc": 0x8000000,
        "uts": 0x4000000,
        "cgroup": 0x2000000,
        "time": 0x80,
    }
    body = """
        import struct
        def clone(bits):
            pid = syscall('clone', bits | 17, 0, 0, 0, 0)
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            return pid
        def clone3(bits):
            arguments = ctypes.create_string_buffer(struct.pack('=11Q', bits, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0))
            pid = syscall('clone3', arguments, 88)
            if pid == 0:
                os._exit(0)
            return pid
        for name, bits in flags.items():
            attempt('unshare ' + name, lambda: syscall('unshare', bits))
            attempt('unshare user and ' + name, lambda: syscall('unshare', bits | flags['user']))
            if name != 'time':  # clone() reads that bit as part of the exit signal
                attempt('clone ' + name, lambda: clone(bits))
                attempt('clone high ' + name, lambda: clone(bits | 1 << 40))
            attempt('clone3 ' + name, lambda: clone3(bits))
        attempt('clone3 plain', lambda: clone3(0))
        """
    assert set(cage.run(guest(body, flags=flags)).check_refused().values()) <= _REFUSED


@pytest.mark.attack("KR-02")
@pytest.mark.claim("WC-KR-1")
def test_no_namespace_of_others_can_be_joined(cage: Cage) -> None:
    body = """
        for pid in ('1', 'self'):
            for name in ('user', 'mnt', 'net', 'pid', 'ipc', 'uts', 'cgroup', 'time'):
                attempt(f'{pid} {name}', lambda: syscall('setns', os.open(f'/proc/{pid}/ns/{name}', os.O_RDONLY), 0))
        attempt('by pidfd', lambda: syscall('setns', os.pidfd_open(os.getpid()), 0x20000))
        attempt('parent', lambda: __import__('fcntl').ioctl(os.open('/proc/self/ns/user', os.O_RDONLY), 0xB702))
        attempt('owner of net', lambda: __import__('fcntl').ioctl(os.open('/proc/self/ns/net', os.O_RDONLY), 0xB701))
        """
    outcome = cage.run(guest(body))
    outcome.report().pop("owner of net")  # its own user namespace: nothing new
    assert not [name for name, end in outcome.report().items() if end.startswith("ok:") and name != "owner of net"]


@pytest.mark.attack("KR-04")
@pytest.mark.claim("WC-PR-1")
@pytest.mark.claim("WC-KR-1")
def test_no_process_can_be_traced_or_read(cage: Cage) -> None:
    victim = subprocess.Popen(["sleep", "30"])
    try:
        body = """
            child = os.fork()
            if child == 0:
                import time
                time.sleep(3)
                os._exit(0)
            for pid in (1, child, os.getpid(), victim, supervisor):
                for request in (0, 16, 0x4206, 2):
                    attempt(f'ptrace {request} {pid}', lambda: syscall('ptrace', request, pid, 0, 0))
                for name in ('process_vm_readv', 'process_vm_writev'):
                    attempt(f'{name} {pid}', lambda: syscall(name, pid, 0, 0, 0, 0, 0))
                attempt(f'kcmp {pid}', lambda: syscall('kcmp', pid, os.getpid(), 0, 0, 0))
                attempt(f'getfd {pid}', lambda: syscall('pidfd_getfd', os.pidfd_open(pid), 0, 0))
                attempt(f'madvise {pid}', lambda: syscall('process_madvise', os.pidfd_open(pid), 0, 0, 21, 0))
                attempt(f'move_pages {pid}', lambda: syscall('move_pages', pid, 0, 0, 0, 0, 0))
            for pid in (1, victim, supervisor):
                attempt(f'mem {pid}', lambda: open(f'/proc/{pid}/mem', 'rb'))
                attempt(f'robust {pid}', lambda: syscall('get_robust_list', pid, ctypes.byref(ctypes.c_long()),
                                                         ctypes.byref(ctypes.c_long())))
                attempt(f'prlimit {pid}', lambda: __import__('resource').prlimit(pid, 7, (5, 5)))
            attempt('ptracer', lambda: syscall('prctl', 0x59616d61, -1, 0, 0, 0))
            os.kill(child, 9)
            """
        report = cage.run(guest(body, victim=victim.pid, supervisor=os.getpid())).check_refused()
        assert set(report.values()) <= {"EPERM", "ENOSYS", "ESRCH", "EACCES", "ENOENT"}
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


@pytest.mark.attack("KR-05")
@pytest.mark.claim("WC-KR-1")
def test_administration_of_the_machine(cage: Cage) -> None:
    _each_refused(
        cage,
        "bpf perf_event_open kexec_load kexec_file_load init_module finit_module delete_module open_by_handle_at "
        "quotactl swapon swapoff reboot settimeofday clock_settime adjtimex clock_adjtime iopl ioperm syslog sethostname "
        "setdomainname acct nfsservctl lookup_dcookie modify_ldt vhangup fanotify_init fanotify_mark userfaultfd "
        "memfd_secret add_key request_key keyctl migrate_pages set_mempolicy mbind create_module query_module uselib "
        "_sysctl sysfs vserver security tuxcall afs_syscall lsm_set_self_attr pkey_none",
    )


@pytest.mark.attack("KR-05")
@pytest.mark.claim("WC-KR-1")
def test_known_ways_into_the_kernel_with_real_arguments(cage: Cage) -> None:
    body = """
        import struct, fcntl, socket
        attempt('bpf map', lambda: syscall('bpf', 0, ctypes.create_string_buffer(struct.pack('=5I', 1, 4, 4, 1, 0), 72), 72))
        attempt('perf', lambda: syscall('perf_event_open', ctypes.create_string_buffer(120), 0, -1, -1, 0))
        attempt('userfaultfd', lambda: syscall('userfaultfd', 1))
        attempt('keyctl', lambda: syscall('keyctl', 0, -3, 1))
        attempt('add_key', lambda: syscall('add_key', b'user', b'warmcell', b'x', 1, -3))
        attempt('seccomp listener', lambda: syscall('seccomp', 1, 8, ctypes.create_string_buffer(16)))
        attempt('seccomp prctl', lambda: syscall('prctl', 22, 2, ctypes.create_string_buffer(16), 0, 0))
        attempt('set_mm', lambda: syscall('prctl', 35, 8, 4096, 0, 0))
        attempt('undumpable', lambda: syscall('prctl', 4, 0, 0, 0, 0))
        attempt('personality', lambda: syscall('personality', 0x0040000))
        handle = ctypes.create_string_buffer(struct.pack('=Ii', 128, 0), 136)
        mount = ctypes.c_int()
        try:
            syscall('name_to_handle_at', -100, b'/etc/passwd', handle, ctypes.byref(mount), 0)
        except OSError:
            pass
        attempt('shocker', lambda: syscall('open_by_handle_at', os.open('/usr', os.O_RDONLY), handle, 0))
        attempt('immutable', lambda: (open('/tmp/f', 'w').close(),
                fcntl.ioctl(os.open('/tmp/f', os.O_RDONLY), 0x40086602, struct.pack('=l', 0x10))))
        attempt('real time', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
        attempt('nice', lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
        attempt('settimeofday', lambda: __import__('time').clock_settime(0, 0.0 + 10**18))
        """
    cage.run(guest(body)).check_refused()


@pytest.mark.attack("KR-05")
@pytest.mark.claim("WC-KR-1")
def test_numbers_that_nobody_knows(cage: Cage) -> None:
    """What a newer kernel adds is refused until somebody has looked at it."""
    body = """
        for number in [*range(470, 700), 1000, 4095, 65535, 0x3fffffff]:
            attempt(str(number), lambda: syscall(number, -1, -1, -1, -1, -1, -1))
        """
    report = cage.run(guest(body)).check_refused()
    assert set(report.values()) == {"ENOSYS"}


@pytest.mark.attack("KR-06")
@pytest.mark.claim("WC-KR-1")
def test_io_uring_and_aio(cage: Cage) -> None:
    _each_refused(
        cage,
        "io_uring_setup io_uring_enter io_uring_register io_setup io_submit io_cancel io_destroy io_getevents io_pgetevents",
    )
    body = "attempt('ring', lambda: syscall('io_uring_setup', 8, ctypes.create_string_buffer(120)))"
    assert cage.run(guest(body)).check_refused()["ring"] in _REFUSED


_X86_ONLY = pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code for x86_64")

_MACHINE_CODE = """
    import mmap
    def execute(code):
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return ctypes.CFUNCTYPE(ctypes.c_long)(address)()
    """


@_X86_ONLY
@pytest.mark.attack("KR-01")
@pytest.mark.claim("WC-KR-1")
@pytest.mark.parametrize("number", [20, 21, 310, 11, 120])
def test_32_bit_calls_kill_the_guest(cage: Cage, number: int) -> None:
    """`int 0x80` with the numbers of i386: getpid, mount, unshare, execve, clone."""
    code = b"\xb8" + number.to_bytes(4, "little") + b"\x31\xdb\x31\xc9\x31\xd2\xcd\x80\x48\x98\xc3"
    outcome = cage.run(guest(_MACHINE_CODE) + f"print('GOT', execute({code!r}))")
    assert "GOT" not in outcome.stdout and outcome.result.signal == 31


@_X86_ONLY
@pytest.mark.attack("KR-01")
@pytest.mark.claim("WC-KR-1")
@pytest.mark.parametrize("number", [39, 165, 272, 520, 512, 0x3FFFFFF])
def test_x32_calls_kill_the_guest(cage: Cage, number: int) -> None:
    outcome = cage.run(guest(f"print('GOT', libc.syscall(ctypes.c_long({0x40000000 | number})))"))
    assert "GOT" not in outcome.stdout and outcome.result.signal == 31


@_X86_ONLY
@pytest.mark.attack("KR-01")
@pytest.mark.claim("WC-KR-1")
def test_high_halves_of_arguments_hide_nothing(cage: Cage) -> None:
    """The filter looks at 32 bits; what the kernel looks at must be the same ones."""
    body = """
        high = 1 << 32
        attempt('clone', lambda: syscall('clone', 0x10000000 | high | 17, 0, 0, 0, 0))
        attempt('packet', lambda: syscall('socket', 17 | high, 3, 0))
        attempt('raw', lambda: syscall('socket', 2, 3 | high, 1))
        attempt('tiocsti', lambda: syscall('ioctl', 0, 0x5412 | high, b'x'))
        attempt('number', lambda: syscall(NR['mount'] | high, 0, 0, 0, 0, 0))
        attempt('prctl', lambda: syscall('prctl', 22 | high, 2, 0, 0, 0))
        """
    cage.run(guest(body)).check_refused()
