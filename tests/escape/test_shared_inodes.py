"""S2-04 and S2-11: events and locks belong to inodes, and those of what may only be read are everybody's."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest
from tests.helpers import eventually

from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import SandboxPolicy

_EVERYTHING = 0xFFF

_WATCH = """
    import ctypes, select, struct, time
    notifier = syscall('inotify_init1', 0o4000)
    def watch(path, mask=0xFFF):
        return syscall('inotify_add_watch', notifier, ctypes.create_string_buffer(os.fsencode(path)), mask)
    """


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    directory = tmp_path / "shown"
    directory.mkdir()
    (directory / "file").write_text("text")
    return directory


def _policy(shown: Path, own: Path | None = None) -> SandboxPolicy:
    builder = SandboxPolicyBuilder().allow_read(shown).allow_process_spawn()
    return (builder.allow_read_write(own) if own else builder).build()


@pytest.mark.attack("S2-04")
@pytest.mark.claim("WC-LK-3")
def test_nothing_that_is_shared_can_be_watched(cage: Cage, shown: Path) -> None:
    body = """
        for path in ('/', '/usr', '/usr/bin', '/etc', '/etc/passwd', '/dev', '/dev/null', '/dev/tty', sys.executable,
                     os.path.dirname(os.__file__), shown, shown + '/file', '/proc/self/root/usr'):
            attempt(path, lambda: watch(path))
            attempt(path + ' without following', lambda: watch(path, 0x02000FFF))
        os.symlink(shown, '/tmp/link')
        attempt('by a link', lambda: watch('/tmp/link/file'))
        os.chdir(shown)
        attempt('by the working directory', lambda: watch('file'))
        attempt('by a descriptor', lambda: watch(f'/proc/self/fd/{os.open(shown, os.O_RDONLY)}'))
        attempt('directory events', lambda: __import__('fcntl').fcntl(os.open(shown, os.O_RDONLY), 1026, 0x3F))
        attempt('fanotify', lambda: syscall('fanotify_init', 0, 0))
        attempt('fanotify by file', lambda: syscall('fanotify_init', 0x200, 0))
        """
    watching = guest(_WATCH.rstrip(" ") + body.replace("\n        ", "\n    "), shown=str(shown))
    report = cage.run(watching, backend=cage.backend(_policy(shown))).check_refused()
    assert set(report.values()) <= {"EACCES", "ELOOP", "EINVAL", "EPERM", "ENOENT"}, report


@pytest.mark.attack("S2-04")
@pytest.mark.claim("WC-LK-3")
def test_a_watching_guest_learns_nothing_of_the_host(cage: Cage, shown: Path, tmp_path: Path) -> None:
    """From outside: whatever it managed to watch, the host opens and executes files and no event comes."""
    own = tmp_path / "own"
    own.mkdir()
    body = """
    for path in (shown, shown + '/file', '/usr/bin', '/', sys.executable):
        try: watch(path)
        except OSError: pass
    open(own + '/ready', 'w').close()
    while not os.path.exists(own + '/done'): time.sleep(0.02)
    try: print('SAW', len(os.read(notifier, 65536)))
    except BlockingIOError: print('nothing')
    """
    code = guest(_WATCH.rstrip(" ") + body, shown=str(shown), own=str(own))
    outcomes = []
    backend = cage.backend(_policy(shown, own))
    thread = threading.Thread(target=lambda: outcomes.append(cage.run(code, backend=backend, timeout=20)))
    thread.start()
    assert eventually(lambda: (own / "ready").exists())
    (shown / "file").read_text()
    (shown / "other").touch()
    os.listdir(shown)
    assert cage.run("ls /usr/bin > /dev/null; true", "command").result.exit_code == 0
    (own / "done").touch()
    thread.join()
    assert outcomes[0].stdout == "nothing\n", outcomes


@pytest.mark.attack("S2-04")
def test_what_is_its_own_can_be_watched(cage: Cage, shown: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    body = """
    os.symlink('/tmp', '/work/link')
    os.chdir('/work')
    for number, path in enumerate(('/work', '/tmp', '/home/sandbox', '/dev/shm', own, 'link'), 1):
        wanted = 2 if path == 'link' else number
        assert watch(path, 0x100) == wanted, path
        open(path + f'/made-{number}', 'w').close()
        events = os.read(notifier, 4096)
        assert b'made-' in events and struct.unpack_from('=i', events)[0] == wanted, (path, events)
    os.symlink('nowhere', '/work/dangling')
    assert watch('dangling', 0x02000400) > 0  # the link itself
    for path, mask, error in (('/work/none', 0x100, 2), ('/work/made-1', 0x01000100, 20), ('', 0x100, 2)):
        try: watch(path, mask)
        except OSError as problem: assert problem.errno == error, (path, problem)
        else: raise AssertionError(path)
    print('fine')
    """
    code = guest(_WATCH.rstrip(" ") + body, own=str(own))
    outcome = cage.run(code, backend=cage.backend(_policy(shown, own)))
    assert outcome.stdout == "fine\n", outcome


@pytest.mark.attack("S2-11")
@pytest.mark.claim("WC-LK-3")
def test_what_is_shared_cannot_be_locked_or_leased(cage: Cage, shown: Path) -> None:
    body = """
    import fcntl
    for path in (shown + '/file', shown, sys.executable, os.__file__, '/etc/passwd', '/dev/null'):
        file = os.open(path, os.O_RDONLY)
        for name, operation in (('shared', 1), ('exclusive', 2)):
            attempt(f'{name} {path}', fcntl.flock, file, operation | 4)
        for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK):
            attempt(f'lease {kind} {path}', fcntl.fcntl, file, 1024, kind)
            attempt(f'delegation {kind} {path}', fcntl.fcntl, file, 1040, b'\\0' * 8)
    fcntl.flock(file, fcntl.LOCK_UN)
    """
    code = guest(body.replace("\n    ", "\n"), shown=str(shown))
    report = cage.run(code, backend=cage.backend(_policy(shown))).check_refused()
    assert set(report.values()) <= {"EOPNOTSUPP", "ENOTSUP", "EINVAL"}, report


@pytest.mark.attack("S2-11")
@pytest.mark.claim("WC-LK-3")
def test_the_hosts_own_lock_is_never_waited_for(cage: Cage, shown: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    code = f"""
import fcntl, os, time
file = open({str(shown / "file")!r})
try: fcntl.flock(file, fcntl.LOCK_EX)
except OSError: pass
open({str(own / "ready")!r}, 'w').close()
while not os.path.exists({str(own / "done")!r}): time.sleep(0.02)
"""
    backend = cage.backend(_policy(shown, own))
    thread = threading.Thread(target=lambda: cage.run(code, backend=backend, timeout=20))
    thread.start()
    try:
        assert eventually(lambda: (own / "ready").exists())
        with (shown / "file").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        (own / "done").touch()
        thread.join()


@pytest.mark.attack("S2-11")
def test_locks_on_its_own_files_work(cage: Cage, shown: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    code = f"""
import fcntl, os, signal, sqlite3, time
for place in ('/tmp', '/work', {str(own)!r}):
    first, second = (open(place + '/lock', 'w') for _ in range(2))
    fcntl.flock(first, fcntl.LOCK_EX)
    try: fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: pass
    else: raise AssertionError(place)
    if os.fork() == 0:
        first.close(), second.close()
        third = open(place + '/lock')
        fcntl.flock(third, fcntl.LOCK_SH)  # waits
        os._exit(7)
    time.sleep(0.1)
    fcntl.flock(first, fcntl.LOCK_UN)
    first.close(), second.close()
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
    database = sqlite3.connect(place + '/db')
    with database: database.execute('create table t (x)')
    database.close()
directory = os.open('/tmp', os.O_RDONLY)
fcntl.flock(directory, fcntl.LOCK_EX)
print('fine')
"""
    outcome = cage.run(code, backend=cage.backend(_policy(shown, own)))
    assert outcome.stdout == "fine\n", outcome
    waited = cage.run("cd /tmp; exec 9>l; flock 9; flock -w 1 l true; echo $?", "command", timeout=8)
    assert waited.stdout in ("1\n", "127\n")  # ended by its alarm; or there is no such command


@pytest.mark.attack("S2-11")
@pytest.mark.claim("WC-LK-3")
def test_other_runs_locks_do_not_show(cage: Cage, tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as file:
        fcntl.fcntl(file, 37, b"\x01\0\0\0" + bytes(28))  # one without an owner: F_OFD_SETLK
        assert cage.run("cat /proc/locks", "command").stdout == ""
