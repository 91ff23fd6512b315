"""FS-01, FS-05: nothing of the host's files can be read, by whatever way the guest walks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest

_SECRETS = (
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/etc/machine-id",
    "/root/.ssh/id_rsa",
    "/root/.bashrc",
    "/root/.aws/credentials",
    "/var/log/dpkg.log",
    "/run/secrets/token",
    "/proc/kcore",
    "/proc/1/root/etc/shadow",
    "/proc/self/root/etc/shadow",
    "/sys/class/dmi/id/product_serial",
)


@pytest.mark.attack("FS-01")
@pytest.mark.claim("WC-FS-1")
def test_absolute_paths_lead_to_nothing(cage: Cage) -> None:
    body = """
        import glob
        for path in [canary, *paths, *glob.glob('/home/*/.aws/credentials'), *glob.glob('/home/*/.ssh/*')]:
            attempt(path, lambda: open(path, 'rb').read(64))
        """
    outcome = cage.run(guest(body, canary=str(cage.canary.file), paths=_SECRETS))
    # Masked files of /proc may be opened; they hold nothing.
    assert [end for end in outcome.report().values() if end.startswith("ok:") and end != "ok:b''"] == []
    assert cage.canary.secret not in outcome.everything


@pytest.mark.attack("FS-01")
@pytest.mark.claim("WC-FS-1")
def test_generated_accounts_name_nobody_of_the_host(cage: Cage) -> None:
    outcome = cage.run("print(open('/etc/passwd').read(), open('/etc/group').read())")
    hosts = {line.split(":")[0] for line in Path("/etc/passwd").read_text().splitlines()}
    guests = {line.split(":")[0] for line in outcome.stdout.split() if ":" in line}
    assert guests & hosts <= {"root", "nobody", "nogroup"}
    assert "sandbox" in guests


@pytest.mark.attack("FS-01")
@pytest.mark.claim("WC-FS-1")
@pytest.mark.parametrize(
    "script",
    [
        "cat '{path}'",
        "read -r line < '{path}'; echo \"$line\"",
        "find / -xdev -name secret.txt -exec cat {{}} + 2>/dev/null",
        "cp '{path}' /tmp/x && cat /tmp/x",
        "ln -s '{path}' /tmp/x && cat /tmp/x",
        "tar cf - '{parent}' 2>/dev/null | cat",
        "cd '{parent}' && cat secret.txt",
    ],
)
def test_shell_programs_find_no_host_file(cage: Cage, script: str) -> None:
    path = cage.canary.file
    outcome = cage.run(script.format(path=path, parent=path.parent), "command")
    assert cage.canary.secret not in outcome.everything


@pytest.mark.attack("FS-05")
@pytest.mark.claim("WC-FS-1")
def test_no_walk_leaves_the_root(cage: Cage) -> None:
    body = """
        up = '../' * 40
        root = os.open('/', os.O_RDONLY | os.O_DIRECTORY)
        here = os.open('.', os.O_RDONLY | os.O_DIRECTORY)
        for name, fd in (('root', root), ('here', here)):
            attempt('openat ' + name, lambda: os.read(os.open(up + canary.lstrip('/'), os.O_RDONLY, dir_fd=fd), 99))
            def walk():
                os.fchdir(fd)
                for _ in range(40):
                    os.chdir('..')
                return open(canary.lstrip('/')).read()
            attempt('fchdir ' + name, walk)
        attempt('proc fd', lambda: open(f'/proc/self/fd/{root}/..' + canary).read())
        attempt('proc cwd', lambda: open('/proc/self/cwd/' + up + canary).read())
        for pid in os.listdir('/proc'):
            if pid.isdigit():
                attempt('root of ' + pid, lambda: open(f'/proc/{pid}/root' + canary).read())
        """
    outcome = cage.run(guest(body, canary=str(cage.canary.file)))
    outcome.check_refused()
    assert cage.canary.secret not in outcome.everything


@pytest.mark.attack("FS-05")
@pytest.mark.claim("WC-FS-1")
@pytest.mark.claim("WC-KR-1")
def test_the_root_cannot_be_changed(cage: Cage) -> None:
    body = """
        os.makedirs('/tmp/new/old')
        attempt('chroot', lambda: syscall('chroot', b'/tmp/new'))
        attempt('pivot_root', lambda: syscall('pivot_root', b'/tmp/new', b'/tmp/new/old'))
        attempt('pivot_root dots', lambda: (os.chdir('/tmp/new'), syscall('pivot_root', b'.', b'.')))
        attempt('open_tree', lambda: syscall('open_tree', -100, b'/', 1))
        attempt('open_by_handle_at', lambda: syscall('open_by_handle_at', 3, ctypes.create_string_buffer(64), 0))
        """
    report = cage.run(guest(body)).check_refused()
    assert set(report.values()) <= {"EPERM", "ENOSYS"}


@pytest.mark.attack("FS-05")
@pytest.mark.claim("WC-FS-1")
def test_a_deleted_working_directory_leads_nowhere(cage: Cage) -> None:
    body = """
        os.mkdir('/tmp/gone'); os.chdir('/tmp/gone'); os.rmdir('/tmp/gone')
        attempt('cwd', os.getcwd)
        attempt('up', lambda: open('../../../../..' + canary).read())
        attempt('remove the work directory', lambda: os.rmdir('/work'))
        """
    assert cage.canary.secret not in cage.run(guest(body, canary=str(cage.canary.file))).everything
