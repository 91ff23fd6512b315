"""The weaker class that must be named: no namespaces, and yet no host file, no host socket, no host process changed."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.escape.harness import Cage, is_zombie
from tests.escape.payloads import guest
from tests.helpers import require

from warmcell.backends.process.backend import ProcessBackend
from warmcell.cage.linux.processes import descendants
from warmcell.core.errors import EnforcerUnavailable
from warmcell.policy.builder import SandboxPolicyBuilder


@pytest.fixture
def weak(cage: Cage) -> ProcessBackend:
    try:
        return cage.backend(SandboxPolicyBuilder().allow_process_spawn().build(), enforcer="landlock")
    except EnforcerUnavailable as reason:
        require(False, str(reason))
        raise


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "30"])
    yield process
    assert process.poll() is None
    process.kill()
    process.wait()


@pytest.mark.claim("WC-PT-4")
def test_the_class_says_what_it_is(cage: Cage, weak: ProcessBackend) -> None:
    enforced = cage.run("print(1)", backend=weak).result.enforced
    assert enforced.isolation_class == "landlock" and enforced.enforcer == "landlock"
    assert weak.capabilities().isolation_class == "landlock"


@pytest.mark.attack("FS-01")
@pytest.mark.attack("FS-02")
@pytest.mark.claim("WC-FS-1")
@pytest.mark.claim("WC-FS-2")
def test_host_files_are_neither_read_nor_changed(cage: Cage, weak: ProcessBackend) -> None:
    body = """
        file, base = canary + '/secret.txt', canary
        fd = os.open(canary, os.O_PATH)
        attempt('read', lambda: open(file).read())
        attempt('list', lambda: os.listdir(base))
        attempt('write', lambda: open(file, 'a'))
        attempt('create', lambda: open(base + '/made', 'w'))
        attempt('unlink', lambda: os.unlink(file))
        attempt('truncate', lambda: os.truncate(file, 0))
        attempt('rename', lambda: os.rename(file, file + 'x'))
        attempt('link', lambda: os.link(file, os.environ['TMPDIR'] + '/l'))
        attempt('symlink', lambda: os.symlink('/', base + '/l'))
        attempt('mkdir', lambda: os.mkdir(base + '/d'))
        attempt('chmod', lambda: os.chmod(file, 0o777))
        attempt('chmod dir', lambda: os.chmod(base, 0o777))
        attempt('fchmodat', lambda: syscall('fchmodat', fd, b'secret.txt', 0o777))
        attempt('fchmodat2', lambda: syscall('fchmodat2', fd, b'secret.txt', 0o777, 0))
        attempt('chown', lambda: os.chown(file, os.getuid(), os.getgid()))
        attempt('utime', lambda: os.utime(file, (1, 1)))
        attempt('xattr', lambda: os.setxattr(file, 'user.x', b'1'))
        attempt('setxattrat', lambda: syscall('setxattrat', -100, file.encode(), 0, b'user.x', bytes(16), 16))
        attempt('file_setattr', lambda: syscall('file_setattr', -100, file.encode(), bytes(24), 24, 0))
        readable = os.open('/usr/bin/env', os.O_RDONLY)
        attempt('fchmod', lambda: os.fchmod(readable, 0o755))
        attempt('futimens', lambda: os.utime(readable))
        """
    outcome = cage.run(guest(body, canary=str(cage.canary.root)), backend=weak)
    outcome.check_refused()
    assert cage.canary.secret not in outcome.everything


@pytest.mark.attack("NW-01")
@pytest.mark.attack("NW-03")
@pytest.mark.attack("NW-04")
@pytest.mark.claim("WC-NW-1")
@pytest.mark.parametrize("is_open", [False, True], ids=["no network", "host network"])
def test_host_sockets_are_out_of_reach(cage: Cage, tmp_path: Path, is_open: bool, weak: ProcessBackend) -> None:
    name = f"\0warmcell-{os.urandom(8).hex()}"
    builder = SandboxPolicyBuilder().allow_process_spawn()
    backend = cage.backend(builder.allow_network().build(), enforcer="landlock") if is_open else weak
    with (
        socket.socket(socket.AF_UNIX) as by_path,
        socket.socket(socket.AF_UNIX) as by_name,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mailbox,
    ):
        by_path.bind(str(tmp_path / "s"))
        mailbox.bind(str(tmp_path / "d"))
        mailbox.setblocking(False)
        for made in ("s", "d"):
            (tmp_path / made).chmod(0o777)
        by_name.bind(name)
        server = socket.create_server(("127.0.0.1", 0))
        for listener in (by_path, by_name, server):
            listener.listen()
            listener.setblocking(False)
        body = """
            import socket
            attempt('path', lambda: socket.socket(socket.AF_UNIX).connect(path))
            attempt('name', lambda: socket.socket(socket.AF_UNIX).connect(name))
            attempt('datagram', lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', mailbox))
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM, socket.SOCK_RAW):
                pair = lambda: socket.socketpair(socket.AF_UNIX, kind)[0]
                for target in (path, mailbox, name):
                    attempt(f'send from pair {kind}', lambda: pair().sendto(b'x', target))
                    attempt(f'message from pair {kind}', lambda: pair().sendmsg([b'x'], (), 0, target))
                    attempt(f'connect pair {kind}', lambda: pair().connect(target))
            if not is_open:
                attempt('tcp', lambda: socket.create_connection(('127.0.0.1', port), 2))
                attempt('udp', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port)))
            """
        places = {"path": str(tmp_path / "s"), "mailbox": str(tmp_path / "d"), "name": name}
        code = guest(body, **places, port=server.getsockname()[1], is_open=is_open)
        try:
            cage.run(code, backend=backend).check_refused()
            for listener in (by_path, by_name, *([] if is_open else [server])):
                with pytest.raises(BlockingIOError):
                    listener.accept()
            with pytest.raises(BlockingIOError):
                mailbox.recv(1)
        finally:
            server.close()


@pytest.mark.attack("KR-04")
@pytest.mark.attack("KR-16")
@pytest.mark.claim("WC-PR-1")
def test_host_processes_are_left_alone(cage: Cage, weak: ProcessBackend, victim: subprocess.Popen[bytes]) -> None:
    before = (resource.prlimit(victim.pid, resource.RLIMIT_NOFILE), os.sched_getaffinity(victim.pid))
    body = """
        import resource, signal
        for number in (0, 10, 19, 9):
            attempt(f'kill {number}', lambda: os.kill(pid, number))
            attempt(f'pidfd {number}', lambda: signal.pidfd_send_signal(os.pidfd_open(pid), number))
        attempt('prlimit', lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (5, 5)))
        attempt('affinity', lambda: os.sched_setaffinity(pid, [0]))
        attempt('priority', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
        attempt('priority of all', lambda: os.setpriority(os.PRIO_USER, 0, 19))
        attempt('idle', lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))
        attempt('io', lambda: syscall('ioprio_set', 1, pid, 3 << 13))
        attempt('ptrace', lambda: syscall('ptrace', 16, pid, 0, 0))
        for name in ('environ', 'mem', 'maps', 'fd/0', 'io'):
            attempt(name, lambda: open(f'/proc/{pid}/{name}', 'rb').read(10))
        for name in ('oom_score_adj', 'comm', 'timerslack_ns'):
            attempt('write ' + name, lambda: open(f'/proc/{pid}/{name}', 'w').write('5'))
        """
    cage.run(guest(body, pid=victim.pid), backend=weak).check_refused()
    assert (resource.prlimit(victim.pid, resource.RLIMIT_NOFILE), os.sched_getaffinity(victim.pid)) == before
    assert os.getpriority(os.PRIO_PROCESS, victim.pid) == os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.attack("LK-05")
@pytest.mark.claim("WC-LK-3")
def test_shared_memory_of_the_host_is_out_of_reach(cage: Cage, weak: ProcessBackend) -> None:
    """There is no IPC namespace: what is made would stay, and what is there would be reachable."""
    body = """
        attempt('shmget', lambda: syscall('shmget', 0x5a4d, 4096, 0o1600))
        attempt('semget', lambda: syscall('semget', 0x5a4d, 1, 0o1600))
        attempt('msgget', lambda: syscall('msgget', 0x5a4d, 0o1600))
        attempt('mq_open', lambda: syscall('mq_open', b'warmcell', 0o102, 0o600, 0))
        attempt('dev shm', lambda: open('/dev/shm/warmcell-x', 'w'))
        """
    cage.run(guest(body), backend=weak).check_refused()


@pytest.mark.attack("RX-12")
@pytest.mark.attack("RX-13")
@pytest.mark.claim("WC-RX-5")
@pytest.mark.parametrize("timeout", [1.0, 6.0])
def test_daemons_end_with_the_run(cage: Cage, weak: ProcessBackend, timeout: float) -> None:
    code = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(30)
        os._exit(0)
"""
    wait = "time.sleep(30)\n" if timeout == 1.0 else "print('done')\n"
    outcome = cage.run(code + wait, backend=weak, timeout=timeout)
    assert outcome.status == ("timeout" if timeout == 1.0 else "ended")


@pytest.mark.attack("PR-03")
@pytest.mark.attack("KR-01")
@pytest.mark.attack("KR-02")
@pytest.mark.claim("WC-PR-2")
@pytest.mark.claim("WC-KR-1")
def test_the_kernel_is_as_closed_as_in_the_full_cage(cage: Cage, weak: ProcessBackend) -> None:
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    body = """
        for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/overcommit_memory', '/proc/self/oom_score_adj'):
            attempt(path, lambda: open(path, 'w').write('-1000'))
        for name in ('mount', 'unshare', 'setns', 'bpf', 'io_uring_setup', 'ptrace', 'keyctl', 'perf_event_open'):
            attempt(name, lambda: syscall(name, -1, -1, -1, -1, -1, -1))
        attempt('userns', lambda: syscall('unshare', 0x10000000))
        attempt('setuid', lambda: os.setuid(12345))
        """
    cage.run(guest(body), backend=weak).check_refused()
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before


@pytest.mark.attack("LK-01")
@pytest.mark.attack("LK-02")
@pytest.mark.claim("WC-LK-1")
@pytest.mark.claim("WC-LK-2")
def test_no_variable_and_no_descriptor_arrives(cage: Cage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMCELL_CANARY", cage.canary.secret)
    backend = cage.backend(enforcer="landlock")
    secret = os.open(cage.canary.file, os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        code = (
            "import os; print(dict(os.environ), sorted(os.listdir('/proc/self/fd')), open('/proc/self/environ').read())"
        )
        outcome = cage.run(code, backend=backend)
    finally:
        os.close(secret)
    assert cage.canary.secret not in outcome.everything and "['0', '1', '2', '3']" in outcome.stdout


@pytest.mark.attack("RX-12")
@pytest.mark.claim("WC-RX-5")
def test_a_long_chain_is_gone_when_the_run_returns(cage: Cage, weak: ProcessBackend) -> None:
    """Each process the child of the last: killing from the top moves the rest up, one by one."""
    cage.run("print(1)", backend=weak)
    before = set(descendants(os.getpid()))
    code = """
import os, time
for _ in range(250):
    if os.fork():
        time.sleep(30)
        os._exit(0)
time.sleep(30)
"""
    cage.run(code, backend=weak, timeout=2.5, processes=400, memory_mb=4000)
    # The dead count until the zygote has reaped them.
    assert not [pid for pid in set(descendants(os.getpid())) - before if not is_zombie(pid)]


@pytest.mark.attack("FS-02")
@pytest.mark.claim("WC-FS-2")
def test_no_setuid_file_can_be_left_on_the_host_here_either(cage: Cage, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    body = """
        attempt('open', lambda: os.close(os.open(shared + '/o', os.O_CREAT | os.O_WRONLY, 0o4755)))
        attempt('mkdir', lambda: os.mkdir(shared + '/d', 0o2755))
        attempt('mknod', lambda: os.mknod(shared + '/n', 0o104755))
        open(shared + '/plain', 'w').close()
        attempt('chmod', lambda: os.chmod(shared + '/plain', 0o4755))
        """
    policy = SandboxPolicyBuilder().allow_read_write(shared).allow_process_spawn().build()
    cage.run(guest(body, shared=str(shared)), backend=cage.backend(policy, enforcer="landlock")).check_refused()
    assert {path.name for path in shared.iterdir()} == {"plain"}


@pytest.mark.attack("S2-14")
@pytest.mark.claim("WC-FS-2")
def test_metadata_is_neither_changed_nor_told(cage: Cage, weak: ProcessBackend, tmp_path: Path) -> None:
    """What the caller owns, the guest owns too, and needs no right to write for any of this."""
    shown = tmp_path / "shown"
    shown.mkdir()
    file = shown / "file"
    file.write_text("text")
    os.setxattr(file, "user.secret", b"canary")
    before = (file.stat().st_ctime_ns, _generation(file))
    body = """
        import fcntl
        readable = os.open(file, os.O_RDONLY)
        attempt('set version', lambda: fcntl.ioctl(readable, 0x40087602, (77).to_bytes(8, 'little')))
        attempt('get version', lambda: fcntl.ioctl(readable, 0x80087601, bytes(8)))
        attempt('set flags', lambda: fcntl.ioctl(readable, 0x40086602, (0x40).to_bytes(8, 'little')))
        attempt('set extended flags', lambda: fcntl.ioctl(readable, 0x401C5820, bytes(28)))
        attempt('extents', lambda: fcntl.ioctl(readable, 0xC020660B, bytes(32)))
        for path in (file, outside, '/usr/bin/env'):
            attempt('attributes of ' + path, lambda: os.listxattr(path))
            attempt('an attribute of ' + path, lambda: os.getxattr(path, 'user.secret'))
            attempt('handle of ' + path, lambda: syscall('name_to_handle_at', -100, path.encode(), bytes(64), bytes(8), 0))
        attempt('inotify', lambda: syscall('inotify_init1', 0))
        attempt('lease', lambda: fcntl.fcntl(readable, 1024, 0))
        attempt('directory events', lambda: fcntl.fcntl(os.open(os.path.dirname(file), os.O_RDONLY), 1026, 0x3F))
        attempt('lock', lambda: fcntl.flock(readable, fcntl.LOCK_EX))
        """
    policy = SandboxPolicyBuilder().allow_read(shown).allow_process_spawn().build()
    backend = cage.backend(policy, enforcer="landlock")
    cage.run(guest(body, file=str(file), outside=str(cage.canary.file)), backend=backend).check_refused()
    assert (file.stat().st_ctime_ns, _generation(file)) == before


def _generation(path: Path) -> bytes:
    """As the file system tells it; not all of them do."""
    with path.open() as file:
        try:
            return fcntl.ioctl(file, 0x80087601, bytes(8))
        except OSError:
            return b""


@pytest.mark.attack("S2-14")
def test_programs_get_along_without(cage: Cage, weak: ProcessBackend) -> None:
    code = """
import fcntl, os, shutil, sqlite3, subprocess, tempfile
place = tempfile.mkdtemp()
with open(place + '/a', 'w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write('text')
shutil.copyfile(place + '/a', place + '/b')
directory = os.open(place, os.O_RDONLY)
fcntl.flock(directory, fcntl.LOCK_EX)
with sqlite3.connect(place + '/db') as database:
    database.execute('create table t (x)')
os.posix_fallocate(os.open(place + '/room', os.O_WRONLY | os.O_CREAT), 0, 100_000)
subprocess.run(f'ls -l {place} > /dev/null && cp {place}/a {place}/c && tail -n 1 {place}/c', shell=True, check=True)
"""
    outcome = cage.run(code, backend=weak)
    assert (outcome.stdout, outcome.result.exit_code) == ("text", 0), outcome


@pytest.mark.attack("S2-06")
@pytest.mark.claim("WC-RX-2")
def test_shared_memory_that_is_not_mapped_counts_here_too(cage: Cage, weak: ProcessBackend) -> None:
    body = """
        import mmap, time
        keep = []
        for _ in range(30):
            area = mmap.mmap(-1, 10 << 20)
            area.write(b'x' * (10 << 20))
            area.madvise(mmap.MADV_DONTNEED)
            keep.append(area)
        time.sleep(15)
        """
    assert cage.run(guest(body), backend=weak, memory_mb=96).status == "memory"
    made = cage.run(guest("attempt('memfd', lambda: os.memfd_create('x'))"), backend=weak)
    if made.result.enforced.memory == "supervisor":
        assert made.check_refused() == {"memfd": "ENOSYS"}
