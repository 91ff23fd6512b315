"""FS-02, FS-12: nothing outside the guest's own directories can be changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest

from warmcell.policy.builder import SandboxPolicyBuilder

_ERRNOS = {"EROFS", "EACCES", "ENOENT", "EPERM", "EXDEV", "EBUSY", "ENOTDIR", "EINVAL"}


@pytest.mark.attack("FS-02")
@pytest.mark.claim("WC-FS-2")
def test_nothing_can_be_made_outside_the_workspace(cage: Cage) -> None:
    body = """
        for base in ('/', '/etc', '/usr', '/usr/bin', '/bin', '/lib', '/opt', '/srv', '/root', '/home', '/var',
                     '/var/lib', '/run', '/boot', '/proc', '/sys', '/dev', canary):
            path = base + '/' + name
            attempt('write ' + base, lambda: open(path, 'w').write('x'))
            attempt('mkdir ' + base, lambda: os.mkdir(path))
            attempt('symlink ' + base, lambda: os.symlink('/', path))
            attempt('link ' + base, lambda: os.link('/code/main.py', path))
            attempt('rename ' + base, lambda: os.rename('/code/main.py', path))
            attempt('fifo ' + base, lambda: os.mkfifo(path))
            attempt('tmpfile ' + base, lambda: os.open(base, os.O_TMPFILE | os.O_WRONLY))
        """
    name = f"warmcell-attack-{os.urandom(6).hex()}"
    report = cage.run(guest(body, name=name, canary=str(cage.canary.root))).check_refused()
    assert set(report.values()) <= _ERRNOS | {"EOPNOTSUPP", "EISDIR"}
    assert not [base for base in ("/etc", "/usr/bin", "/opt", "/var/tmp", "/tmp") if (Path(base) / name).exists()]


@pytest.mark.attack("FS-02")
@pytest.mark.claim("WC-FS-2")
def test_var_tmp_is_the_guests_own(cage: Cage) -> None:
    name = f"warmcell-attack-{os.urandom(6).hex()}"
    assert cage.run(f"open('/var/tmp/{name}', 'w').write('x'); print('made')").stdout == "made\n"
    assert not (Path("/var/tmp") / name).exists() and not (Path("/tmp") / name).exists()


@pytest.mark.attack("FS-02")
@pytest.mark.claim("WC-FS-2")
def test_system_files_cannot_be_changed_in_any_way(cage: Cage) -> None:
    body = """
        for path in ('/usr/bin/env', '/etc/passwd', '/etc/ld.so.cache', '/usr', '/etc', sys.executable, '/bin/sh'):
            attempt('open ' + path, lambda: os.open(path, os.O_WRONLY))
            attempt('append ' + path, lambda: os.open(path, os.O_WRONLY | os.O_APPEND))
            attempt('truncate ' + path, lambda: os.truncate(path, 0))
            attempt('unlink ' + path, lambda: os.unlink(path))
            attempt('rename ' + path, lambda: os.rename(path, path + 'x'))
            attempt('move out ' + path, lambda: os.rename(path, '/tmp/x'))
            attempt('replace ' + path, lambda: os.replace('/code/main.py', path))
            attempt('chmod ' + path, lambda: os.chmod(path, 0o777))
            attempt('chown ' + path, lambda: os.chown(path, 1000, 1000))
            attempt('utime ' + path, lambda: os.utime(path, (1, 1)))
            attempt('xattr ' + path, lambda: os.setxattr(path, 'user.x', b'x'))
            attempt('link ' + path, lambda: os.link(path, '/tmp/hard' + path.replace('/', '-')))
        """
    report = cage.run(guest(body)).check_refused()
    assert set(report.values()) <= _ERRNOS | {"EISDIR", "ENOTSUP", "EOPNOTSUPP"}


@pytest.mark.attack("FS-02")
@pytest.mark.claim("WC-FS-2")
@pytest.mark.claim("WC-FS-4")
def test_device_nodes_of_the_host_keep_their_times(cage: Cage) -> None:
    names = [
        path for path in ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/tty") if os.path.exists(path)
    ]
    before = {name: (os.stat(name).st_mode, os.stat(name).st_uid) for name in names}
    body = """
        for path in paths:
            attempt('utime ' + path, lambda: os.utime(path, (1, 1)))
            attempt('touch ' + path, lambda: os.utime(path))
            attempt('chmod ' + path, lambda: os.chmod(path, 0o600))
        """
    started = time.time()
    cage.run(guest(body, paths=names)).check_refused()
    assert {name: (os.stat(name).st_mode, os.stat(name).st_uid) for name in names} == before
    assert all(not 1 < os.stat(name).st_mtime < 2 for name in names) and started


@pytest.mark.attack("FS-12")
@pytest.mark.claim("WC-FS-3")
def test_a_read_only_path_stays_read_only(cage: Cage, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    file = data / "file"
    file.write_text("original")
    file.chmod(0o666)
    before = (file.stat().st_mtime_ns, file.stat().st_ino, data.stat().st_mtime_ns, file.stat().st_mode)
    body = """
        import mmap
        file, flags = data + '/file', os.O_RDONLY
        fd = os.open(file, flags)
        mapped = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        address = ctypes.addressof(ctypes.c_char.from_buffer_copy(b'x'))
        attempt('write', lambda: open(file, 'w'))
        attempt('create', lambda: open(data + '/new', 'w'))
        attempt('reopen', lambda: os.open(f'/proc/self/fd/{fd}', os.O_RDWR))
        attempt('reopen dev', lambda: os.open(f'/dev/fd/{fd}', os.O_WRONLY | os.O_TRUNC))
        attempt('ftruncate', lambda: os.ftruncate(fd, 0))
        attempt('fallocate', lambda: os.posix_fallocate(fd, 0, 99))
        attempt('fchmod', lambda: os.fchmod(fd, 0o777))
        attempt('utime', lambda: os.utime(fd))
        attempt('fsetxattr', lambda: os.setxattr(fd, 'user.x', b'1'))
        attempt('map shared', lambda: mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
        page = libc.mmap
        page.restype = ctypes.c_void_p
        where = page(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0))
        attempt('mprotect', lambda: syscall('mprotect', where, 4096, 3))
        def own_memory():
            with open('/proc/self/mem', 'r+b', buffering=0) as memory:
                memory.seek(where)
                return memory.write(b'PWNED')
        attempt('proc mem', own_memory)
        attempt('pwritev2', lambda: syscall('pwritev2', fd, None, 0, 0, 0, 0) or os.pwrite(fd, b'x', 0))
        attempt('copy_file_range', lambda: os.copy_file_range(os.open('/code/main.py', 0), fd, 10))
        attempt('splice', lambda: os.splice(os.pipe()[0], fd, 0) or os.pwrite(fd, b'x', 0))
        attempt('link out', lambda: os.link(file, '/tmp/hard'))
        attempt('rename out', lambda: os.rename(file, '/tmp/moved'))
        attempt('remount', lambda: syscall('mount', None, data.encode(), None, 32 | 4096, None))
        attempt('setattr', lambda: syscall('mount_setattr', -100, data.encode(), 0, ctypes.create_string_buffer(32), 32))
        attempt('bind over', lambda: syscall('mount', b'/tmp', data.encode(), None, 4096, None))
        attempt('umount', lambda: syscall('umount2', data.encode(), 2))
        """
    policy = SandboxPolicyBuilder().allow_read(data).allow_process_spawn().build()
    outcome = cage.run(guest(body, data=str(data)), backend=cage.backend(policy))
    outcome.check_refused()
    assert file.read_text() == "original" and [path.name for path in data.iterdir()] == ["file"]
    assert (file.stat().st_mtime_ns, file.stat().st_ino, data.stat().st_mtime_ns, file.stat().st_mode) == before


@pytest.mark.attack("FS-12")
@pytest.mark.claim("WC-FS-3")
def test_read_only_inside_writable_inside_read_only(cage: Cage, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    (outer / "rw" / "ro").mkdir(parents=True)
    (outer / "rw" / "ro" / "file").write_text("original")
    body = """
        for where in ('', '/rw', '/rw/ro'):
            attempt('create in ' + where, lambda: open(outer + where + '/made', 'w').close())
        attempt('overwrite', lambda: open(outer + '/rw/ro/file', 'w'))
        attempt('move the mount', lambda: os.rename(outer + '/rw/ro', outer + '/rw/elsewhere'))
        attempt('move its parent', lambda: os.rename(outer + '/rw', outer + '/elsewhere'))
        attempt('link', lambda: os.link(outer + '/rw/ro/file', outer + '/rw/hard'))
        """
    builder = SandboxPolicyBuilder().allow_read(outer).allow_read_write(outer / "rw").allow_read(outer / "rw" / "ro")
    backend = cage.backend(builder.allow_process_spawn().build())
    report = cage.run(guest(body, outer=str(outer)), backend=backend).report()
    assert [name for name, end in report.items() if end.startswith("ok:")] == ["create in /rw"]
    assert sorted(path.name for path in outer.rglob("*")) == ["file", "made", "ro", "rw"]


@pytest.mark.attack("FS-02")
@pytest.mark.claim("WC-FS-2")
def test_no_setuid_file_can_be_left_on_the_host(cage: Cage, tmp_path: Path) -> None:
    """As root the guest's files belong to the caller: one with the setuid bit would be a way to become them."""
    shared = tmp_path / "shared"
    shared.mkdir()
    body = """
        for number, mode in enumerate((0o4755, 0o2755, 0o6755)):
            path = f'{shared}/file{number}'
            open(path, 'w').write('x')
            fd = os.open(path, os.O_RDWR)
            attempt(f'chmod {mode:o}', lambda: os.chmod(path, mode))
            attempt(f'fchmod {mode:o}', lambda: os.fchmod(fd, mode))
            attempt(f'fchmodat {mode:o}', lambda: syscall('fchmodat', -100, path.encode(), mode))
            attempt(f'fchmodat2 {mode:o}', lambda: syscall('fchmodat2', -100, path.encode(), mode, 0))
            attempt(f'open {mode:o}', lambda: os.close(os.open(path + 'o', os.O_CREAT | os.O_WRONLY, mode)))
            how = ctypes.create_string_buffer(b''.join(n.to_bytes(8, 'little') for n in (os.O_CREAT | 1, mode, 0)))
            attempt(f'openat2 {mode:o}', lambda: syscall('openat2', -100, path.encode() + b'2', how, 24))
            if 'creat' in NR:
                attempt(f'creat {mode:o}', lambda: syscall('creat', path.encode() + b'c', mode))
                attempt(f'open call {mode:o}', lambda: syscall('open', path.encode() + b'p', os.O_CREAT | 1, mode))
            attempt(f'mkdir {mode:o}', lambda: os.mkdir(path + 'd', mode))
            attempt(f'mknod {mode:o}', lambda: os.mknod(path + 'n', 0o100000 | mode))
        """
    policy = SandboxPolicyBuilder().allow_read_write(shared).allow_process_spawn().build()
    cage.run(guest(body, shared=str(shared)), backend=cage.backend(policy))
    special = {path.name: oct(path.stat().st_mode) for path in shared.rglob("*") if path.stat().st_mode & 0o6000}
    assert not special
