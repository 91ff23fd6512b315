"""RX-06 to RX-11: disk, files, output and descriptors are bounded, for the guest and for whoever looks at what it left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.escape.harness import Cage, forget_peak, memory
from tests.escape.payloads import guest
from tests.helpers import eventually

from warmcell.policy.builder import SandboxPolicyBuilder

#: 80 MB in more than two seconds: a watcher that stands still for one of them sees them before they are 60.
_FILLS = {
    "one file": "f = open('x', 'wb')\nfor _ in range(80): f.write(bytes(MB)); f.flush(); time.sleep(.03)",
    "many files": "for i in range(80): open(f'f{i}', 'wb').write(bytes(MB)); time.sleep(.03)",
    "fallocate": "fd = os.open('x', os.O_CREAT | os.O_WRONLY)\nos.posix_fallocate(fd, 0, 80 * MB)",
    "hidden directory": "os.mkdir('h'); os.chdir('h'); os.chmod('.', 0o300)\n"
    "for i in range(80): open(f'f{i}', 'wb').write(bytes(MB)); time.sleep(.03)",
    "directory without any permission": "os.mkdir('h'); os.mkdir('h/i'); here = os.open('h/i', os.O_RDONLY); os.chmod('h', 0)\n"
    "for i in range(80):\n"
    "    f = os.open(f'f{i}', os.O_CREAT | os.O_WRONLY, dir_fd=here); os.write(f, bytes(MB)); os.close(f); time.sleep(.03)",
    "deleted files": "keep = []\nfor i in range(80):\n"
    "    f = open('x', 'wb'); os.unlink('x'); f.write(bytes(MB)); f.flush(); keep.append(f); time.sleep(.03)",
    "nameless files": "keep = []\nfor i in range(80):\n"
    "    f = os.open('.', os.O_TMPFILE | os.O_WRONLY); os.write(f, bytes(MB)); keep.append(f); time.sleep(.03)",
    "deep path": "for _ in range(20): os.mkdir('n' * 250); os.chdir('n' * 250)\n"
    "for i in range(80): open(f'f{i}', 'wb').write(bytes(MB)); time.sleep(.03)",
    "children": "for i in range(4):\n    if os.fork() == 0:\n        for j in range(20):\n"
    "            open(f'{i}-{j}', 'wb').write(bytes(MB)); time.sleep(.12)\n        os._exit(0)\n"
    "[os.wait() for _ in range(4)]",
}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    directory = tmp_path / "shared"
    directory.mkdir()
    return directory


def _used(directory: Path) -> int:
    """Bytes on disk, without following the guest's traps: by descriptors, as deep as it goes."""
    total = 0
    for _, _, files, handle in os.fwalk(directory, follow_symlinks=False):
        total += sum(os.stat(name, dir_fd=handle, follow_symlinks=False).st_blocks * 512 for name in files)
    return total


@pytest.mark.attack("RX-06")
@pytest.mark.claim("WC-RX-3")
@pytest.mark.parametrize("name", list(_FILLS))
def test_a_persistent_directory_cannot_be_filled(cage: Cage, shared: Path, name: str) -> None:
    code = (
        f"import os, time\nMB = 1 << 20\nos.chdir({str(shared)!r})\n{_FILLS[name]}\ntime.sleep(20)\nprint('GOT AWAY')"
    )
    policy = SandboxPolicyBuilder().allow_read_write(shared).allow_process_spawn().build()
    outcome = cage.run(code, backend=cage.backend(policy), disk_mb=16, timeout=30)
    if (shared / "h").exists():
        (shared / "h").chmod(0o700)
    assert "GOT AWAY" not in outcome.stdout, f"{_used(shared) >> 20} MB on disk"
    # What is written between two looks may be over, but not by much.
    assert _used(shared) <= 60 << 20


@pytest.mark.attack("RX-06")
@pytest.mark.claim("WC-RX-3")
def test_a_single_huge_file_is_refused(cage: Cage, shared: Path) -> None:
    body = """
        import signal, resource
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for path in ('/tmp/x', '/work/x', shared + '/x'):
            def write():
                with open(path, 'wb') as file:
                    file.seek(10 << 30)
                    file.write(b'x')
            attempt('seek ' + path, write)
            attempt('truncate ' + path, lambda: os.truncate(path, 10 << 30))
            attempt('allocate ' + path, lambda: os.posix_fallocate(os.open(path, os.O_RDWR), 0, 10 << 30))
        attempt('raise the limit', lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1)))
        attempt('prlimit', lambda: resource.prlimit(os.getpid(), resource.RLIMIT_FSIZE, (1 << 40, 1 << 40)))
        """
    policy = SandboxPolicyBuilder().allow_read_write(shared).allow_process_spawn().build()
    report = cage.run(guest(body, shared=str(shared)), backend=cage.backend(policy), disk_mb=16).check_refused()
    assert set(report.values()) <= {"EFBIG", "ENOSPC", "ValueError", "EPERM", "EDQUOT"}


@pytest.mark.attack("RX-07")
@pytest.mark.claim("WC-RX-3")
@pytest.mark.claim("WC-WS-2")
def test_a_sparse_terabyte_cannot_be_made(cage: Cage, shared: Path) -> None:
    body = """
        import signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for place in ('/tmp', '/work', '/dev/shm', shared):
            attempt('truncate ' + place, lambda: open(place + '/sparse', 'wb').truncate(1 << 40))
        attempt('memfd', lambda: os.ftruncate(os.memfd_create('x'), 1 << 40))
        """
    policy = SandboxPolicyBuilder().allow_read_write(shared).allow_process_spawn().build()
    cage.run(guest(body, shared=str(shared)), backend=cage.backend(policy)).check_refused()
    assert all(path.stat().st_size < 1 << 30 for path in shared.iterdir())


@pytest.mark.attack("RX-08")
@pytest.mark.claim("WC-RX-3")
@pytest.mark.parametrize("kind", ["files", "directories", "links"])
def test_inodes_of_private_places_are_bounded(cage: Cage, kind: str) -> None:
    action = {"files": "os.mknod(str(i))", "directories": "os.mkdir(str(i))", "links": "os.symlink('x', str(i))"}[kind]
    code = f"""
import errno, os
os.chdir('/tmp')
try:
    for i in range(200_000):
        {action}
    print('GOT AWAY')
except OSError as error:
    print(errno.errorcode[error.errno], i < 20_000)
"""
    assert cage.run(code, disk_mb=16, timeout=15).stdout == "ENOSPC True\n"


@pytest.mark.attack("RX-08")
@pytest.mark.claim("WC-RX-3")
def test_inodes_of_a_persistent_directory_are_bounded(cage: Cage, shared: Path) -> None:
    code = f"""
import os, time
os.chdir({str(shared)!r})
for i in range(60_000):
    os.close(os.open(str(i), os.O_CREAT | os.O_WRONLY))
time.sleep(12)  # a large tree is looked at less often
print('GOT AWAY')
"""
    policy = SandboxPolicyBuilder().allow_read_write(shared).allow_process_spawn().build()
    outcome = cage.run(code, backend=cage.backend(policy), disk_mb=16, timeout=40)
    assert outcome.status == "ended" and "GOT AWAY" not in outcome.stdout


@pytest.mark.attack("RX-09")
@pytest.mark.claim("WC-RX-4")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("command", "yes"),
        ("command", "yes >&2"),
        ("command", "yes & yes >&2"),
        (
            "python",
            "import os\nwhile True: os.write(1, b'\\xff\\x00\\xed\\xa0\\x80' * 9999); os.write(2, b'\\x1b[2J' * 9999)",
        ),
        ("command", "cat /dev/zero & cat /dev/urandom >&2; wait"),
    ],
)
def test_floods_are_capped_and_never_stall(cage: Cage, language: str, code: str) -> None:
    forget_peak()
    before = memory("VmRSS")
    outcome = cage.run(code, language, timeout=1.2, output_bytes=100_000)
    assert outcome.status == "timeout"
    assert len(outcome.result.stdout_bytes) <= 100_000 and len(outcome.result.stderr_bytes) <= 100_000
    assert outcome.result.stdout_truncated or outcome.result.stderr_truncated
    assert memory("VmHWM") - before < 16 << 20


@pytest.mark.attack("RX-09")
@pytest.mark.claim("WC-RX-4")
def test_a_finite_flood_lets_the_guest_finish(cage: Cage) -> None:
    code = "import sys\nfor _ in range(200): sys.stdout.write('x' * 100_000)\nprint('end', file=sys.stderr)"
    outcome = cage.run(code, output_bytes=10_000)
    assert outcome.result.stderr == "end\n" and outcome.result.exit_code == 0
    assert outcome.result.stdout_truncated and not outcome.result.stderr_truncated


@pytest.mark.attack("RX-11")
@pytest.mark.claim("WC-RX-3")
@pytest.mark.parametrize(
    "action",
    [
        "open('/dev/null')",
        "socket.socketpair()",
        "select.epoll()",
        "os.memfd_create('x')",
        "os.pipe()",
        "os.dup(0)",
        "os.eventfd(0)",
        "socket.socket()",
        "os.open('/', os.O_PATH)",
    ],
)
def test_descriptors_are_bounded(cage: Cage, action: str) -> None:
    code = f"""
import errno, os, select, socket
keep = []
try:
    for _ in range(5000):
        keep.append({action})
    print('GOT AWAY')
except OSError as error:
    print(errno.errorcode[error.errno], len(keep) <= 64)
"""
    # Where init makes the file behind a memfd, a full table shows as EPERM.
    assert cage.run(code, open_files=64).stdout in ("EMFILE True\n", "EPERM True\n")


@pytest.mark.attack("RX-11")
@pytest.mark.claim("WC-RX-3")
def test_the_ceiling_of_descriptors_cannot_be_raised(cage: Cage) -> None:
    body = """
        import resource
        for wanted in (65, 1 << 20):
            attempt(f'raise {wanted}', lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted)))
        attempt('processes', lambda: resource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999)))
        attempt('locked', lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 40, 1 << 40)))
        attempt('core', lambda: resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30)))
        attempt('lock', lambda: syscall('mlockall', 7) or (bytearray(64 << 20) and 0 and 1) or syscall('mlock', 4096, 1 << 40))
        """
    cage.run(guest(body), open_files=64).check_refused()


@pytest.mark.attack("RX-11")
@pytest.mark.claim("WC-RX-5")
def test_descriptors_in_flight_are_freed_with_the_run(cage: Cage) -> None:
    """Sockets that hold each other's descriptors are garbage that only the kernel can find."""
    code = """
import socket
keep = []
try:
    for _ in range(400):
        a, b = socket.socketpair()
        socket.send_fds(a, [b'x'], [a.fileno(), b.fileno()])
        keep.append((a, b))
except OSError as error:
    print(error.errno)
print('end')
"""
    before = _sockets()
    assert cage.run(code, open_files=512).stdout.endswith("end\n")
    assert eventually(lambda: _sockets() <= before + 60)  # others of this host have sockets, too


def _sockets() -> int:
    return int(Path("/proc/net/sockstat").read_text().split()[2])
