"""FS-09, FS-10: no privilege can be regained, no device reached."""

from __future__ import annotations

import stat

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest


def _status(text: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


@pytest.mark.attack("FS-09")
@pytest.mark.claim("WC-PR-3")
@pytest.mark.parametrize("language", ["python", "command"])
def test_the_guest_holds_no_privilege(cage: Cage, language: str) -> None:
    code = "cat /proc/self/status" if language == "command" else "print(open('/proc/self/status').read())"
    status = _status(cage.run(code, language).stdout)
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["Uid"].split() == ["1000"] * 4 and status["Gid"].split() == ["1000"] * 4


@pytest.mark.attack("FS-09")
@pytest.mark.claim("WC-PR-3")
def test_privileged_programs_stay_unprivileged(cage: Cage) -> None:
    script = """
        for program in su sudo ping mount umount newuidmap newgidmap passwd chsh gpasswd pkexec; do
            path=$(command -v $program) && timeout 0.5 "$path" </dev/null >/dev/null 2>&1
        done
        cat /proc/self/status
        """
    status = _status(cage.run(script, "command", timeout=60).stdout)
    assert status["CapEff"] == "0" * 16 and status["Uid"].split() == ["1000"] * 4


@pytest.mark.attack("FS-09")
@pytest.mark.claim("WC-PR-3")
def test_ids_and_capabilities_cannot_be_taken_back(cage: Cage) -> None:
    body = """
        import struct
        for wanted in (0, 1, 65534):
            attempt(f'setuid {wanted}', lambda: os.setuid(wanted))
            attempt(f'setresuid {wanted}', lambda: os.setresuid(wanted, wanted, wanted))
            attempt(f'setgid {wanted}', lambda: os.setgid(wanted))
            attempt(f'setgroups {wanted}', lambda: os.setgroups([wanted]))
        header = ctypes.create_string_buffer(struct.pack('=Ii', 0x20080522, 0))
        full = ctypes.create_string_buffer(b'\\xff' * 24)
        attempt('capset', lambda: syscall('capset', header, full))
        attempt('ambient', lambda: syscall('prctl', 47, 2, 21, 0, 0))
        attempt('keep caps and setuid', lambda: (syscall('prctl', 8, 1, 0, 0, 0), os.setuid(0)))
        attempt('drop no_new_privs', lambda: syscall('prctl', 38, 0, 0, 0, 0))
        attempt('uid_map', lambda: open('/proc/self/uid_map', 'w').write('0 0 1'))
        attempt('file capability', lambda: (open('/tmp/f', 'w').close(),
                os.setxattr('/tmp/f', 'security.capability', struct.pack('=IIIII', 0x2000001, 0xff, 0, 0, 0))))
        """
    cage.run(guest(body)).check_refused()


@pytest.mark.attack("FS-09")
@pytest.mark.claim("WC-PR-3")
def test_own_setuid_copies_give_nothing(cage: Cage) -> None:
    script = "cp /bin/cat /tmp/c; chmod 6755 /tmp/c 2>/dev/null; /tmp/c /proc/self/status"
    status = _status(cage.run(script, "command").stdout)
    assert status["Uid"].split() == ["1000"] * 4 and status["CapEff"] == "0" * 16


@pytest.mark.attack("FS-10")
@pytest.mark.claim("WC-FS-4")
def test_dev_holds_six_nodes(cage: Cage) -> None:
    code = "import os\nfor n in sorted(os.listdir('/dev')): s = os.lstat('/dev/' + n); print(n, s.st_mode, s.st_rdev)"
    rows = [line.split() for line in cage.run(code).stdout.splitlines()]
    nodes = {name for name, mode, _ in rows if stat.S_ISCHR(int(mode)) or stat.S_ISBLK(int(mode))}
    assert nodes == {"null", "zero", "full", "random", "urandom", "tty"}
    assert {name for name, _, _ in rows} - nodes <= {"fd", "stdin", "stdout", "stderr", "shm", "pts", "ptmx"}


@pytest.mark.attack("FS-10")
@pytest.mark.claim("WC-FS-4")
def test_devices_can_be_neither_made_nor_opened(cage: Cage) -> None:
    body = """
        for where in ('/tmp', '/dev', '/work', '/dev/shm', '/home/sandbox'):
            for kind, bits in (('c', 0o020000), ('b', 0o060000)):
                for number in (os.makedev(1, 1), os.makedev(8, 0), os.makedev(1, 3), 0):
                    path = f'{where}/{kind}{number}'
                    attempt('mknod ' + path, lambda: os.mknod(path, bits | 0o666, number))
                    attempt('mknodat ' + path, lambda: syscall('mknodat', -100, path.encode(), bits | 0o666, number))
        for name in ('mem', 'kmem', 'port', 'kmsg', 'fuse', 'kvm', 'vsock', 'vhost-net', 'loop-control', 'loop0', 'sda',
                     'vda', 'nvme0n1', 'net/tun', 'uinput', 'input/event0', 'dri/card0', 'snd/controlC0', 'ptmx', 'pts/0',
                     'console', 'tty0', 'ttyS0', 'mapper/control', 'userfaultfd', 'hpet', 'rtc0', 'cpu_dma_latency',
                     'watchdog', 'btrfs-control', 'zram0', 'autofs', 'bus/usb/001/001', 'tty'):
            attempt('open ' + name, lambda: os.open('/dev/' + name, os.O_RDWR | os.O_NONBLOCK))
        """
    report = cage.run(guest(body)).check_refused()
    assert set(report.values()) <= {"EPERM", "ENOENT", "EROFS", "EACCES", "ENXIO", "EEXIST", "EINVAL"}


@pytest.mark.attack("FS-10")
@pytest.mark.claim("WC-FS-4")
def test_the_six_nodes_work(cage: Cage) -> None:
    code = """
import os
open('/dev/null', 'w').write('x')
print(open('/dev/zero', 'rb').read(4), len(open('/dev/urandom', 'rb').read(8)), len(open('/dev/random', 'rb').read(2)))
try:
    os.write(os.open('/dev/full', os.O_WRONLY), b'x')
except OSError as error:
    print(error.errno)
"""
    assert cage.run(code).stdout == "b'\\x00\\x00\\x00\\x00' 8 2\n28\n"
