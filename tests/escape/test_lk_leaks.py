"""LK: nothing of the caller, of the host or of another run is visible."""

from __future__ import annotations

import fcntl
import getpass
import os
import platform
import re
import socket
import threading
from pathlib import Path
from uuid import UUID

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest

import warmcell
from warmcell.core.errors import SandboxError
from warmcell.languages.config import ProcessConfig

_NAMES = (
    "WARMCELL_CANARY",
    "AWS_SECRET_ACCESS_KEY",
    "OPENAI_API_KEY",
    "GITHUB_TOKEN",
    "LD_PRELOAD_CANARY",
    "PYTHONSTARTUP_X",
)


@pytest.mark.attack("LK-01")
@pytest.mark.claim("WC-LK-1")
@pytest.mark.parametrize("language", ["python", "command", "javascript"])
def test_no_variable_of_the_caller_arrives(cage: Cage, monkeypatch: pytest.MonkeyPatch, language: str) -> None:
    for name in _NAMES:
        monkeypatch.setenv(name, cage.canary.secret)
    code = {
        "python": "import os, subprocess\nprint(dict(os.environ), subprocess.run(['env'], capture_output=True, text=True))\n"
        "for p in os.listdir('/proc'):\n    try:\n        print(open(f'/proc/{p}/environ').read())\n"
        "    except OSError:\n        pass",
        "command": "env; export; cat /proc/self/environ /proc/*/environ 2>/dev/null; sh -c env",
        "javascript": "console.log(process.env, require('child_process').execSync('env').toString())",
    }[language]
    # Made now: the zygote of a backend that already runs has the environment of an earlier moment.
    backend = cage.backend()
    outcome = cage.run(code, language, backend=backend)
    assert cage.canary.secret not in outcome.everything
    assert not [name for name in _NAMES if name in outcome.everything]


@pytest.mark.attack("LK-01")
@pytest.mark.claim("WC-LK-1")
def test_variables_that_were_passed_arrive(cage: Cage) -> None:
    assert cage.run("import os; print(os.environ['GIVEN'])", env={"GIVEN": "yes"}).stdout == "yes\n"


@pytest.mark.attack("LK-02")
@pytest.mark.claim("WC-LK-2")
@pytest.mark.parametrize("language", ["python", "command"])
def test_no_descriptor_of_the_caller_arrives(cage: Cage, language: str) -> None:
    secret = os.open(cage.canary.file, os.O_RDONLY)
    directory = os.open("/", os.O_RDONLY)
    ends = socket.socketpair()
    # The lowest that are free from there on: one of this process's own may have such a number.
    copies = [fcntl.fcntl(secret, fcntl.F_DUPFD, number) for number in (77, 200)]
    for item in (secret, directory, ends[0].fileno(), ends[1].fileno()):
        os.set_inheritable(item, True)
    try:
        python = """
            found = []
            for number in range(3, 1024):
                try:
                    os.fstat(number)
                    found.append(number)
                    print(os.read(number, 100))
                except OSError:
                    pass
            print('open', found, sorted(os.listdir('/proc/self/fd')))
            """
        shell = f"ls /proc/self/fd; cat /dev/fd/{copies[0]}; cat /proc/self/fd/{copies[1]}"
        code = guest(python) if language == "python" else shell
        outcome = cage.run(code, language, backend=cage.backend())
    finally:
        for number in (*copies, secret, directory):
            os.close(number)
        for end in ends:
            end.close()
    assert cage.canary.secret not in outcome.everything
    if language == "python":
        assert outcome.stdout == "open [] ['0', '1', '2', '3']\n"  # 3 is the listing itself


@pytest.mark.attack("LK-02")
@pytest.mark.claim("WC-LK-2")
def test_the_guests_streams_are_pipes_of_its_own(cage: Cage) -> None:
    """Reopening them leads to the same pipes, not to what the caller has there."""
    body = """
        for number in (0, 1, 2):
            print(os.readlink(f'/proc/self/fd/{number}').split(':')[0])
        attempt('scm', lambda: __import__('socket').socket(fileno=os.dup(1)).recvmsg(1, 100))
        """
    outcome = cage.run(guest(body))
    assert outcome.stdout.splitlines()[:3] == ["pipe"] * 3


@pytest.mark.attack("LK-03")
@pytest.mark.claim("WC-FS-1")
def test_credentials_in_home_are_not_there(cage: Cage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        ".ssh/id_rsa .aws/credentials .config/gcloud/credentials.db .kube/config .docker/config.json .netrc "
        ".git-credentials .pypirc .npmrc .bash_history .gnupg/secring.gpg .cargo/credentials"
    ).split()
    home = tmp_path / "home"
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(cage.canary.secret)
    monkeypatch.setenv("HOME", str(home))
    body = """
        bases = [os.path.expanduser('~'), home, '/root', '/home/' + user, os.path.expanduser('~' + user)]
        for base in bases:
            for name in names:
                attempt(base + '/' + name, lambda: open(os.path.join(base, name)).read())
        """
    code = guest(body, names=names, home=str(home), user=getpass.getuser())
    outcome = cage.run(code, backend=cage.backend())
    outcome.check_refused()
    assert cage.canary.secret not in outcome.everything


@pytest.mark.attack("LK-04")
@pytest.mark.claim("WC-LK-4")
def test_the_host_has_no_name(cage: Cage) -> None:
    code = """
import getpass, os, platform, socket, uuid
print(socket.gethostname(), platform.node(), os.uname().nodename, os.uname().release != '')
print(getpass.getuser(), os.getuid(), os.path.expanduser('~'))
for path in ('/etc/hostname', '/etc/hosts', '/etc/machine-id', '/var/lib/dbus/machine-id', '/proc/sys/kernel/hostname',
             '/proc/sys/kernel/domainname', '/proc/cmdline', '/proc/self/cgroup', '/proc/1/cgroup', '/etc/resolv.conf',
             '/sys/class/dmi/id/product_uuid', '/proc/net/arp', '/proc/net/dev', '/proc/net/route', '/proc/net/unix'):
    try:
        print(path, repr(open(path).read()))
    except OSError as error:
        print(path, error.strerror)
"""
    text = cage.run(code).stdout
    assert text.startswith("sandbox sandbox sandbox True\nsandbox 1000 /home/sandbox\n")
    for name in {platform.node(), getpass.getuser()} - {"root", "sandbox"}:
        # A short name ("dev") is a word of the kernel's own.
        assert len(name) < 4 or not re.search(rf"\b{re.escape(name)}\b", text), name
    assert f"/home/{getpass.getuser()}" not in text
    for path in ("/etc/machine-id", "/proc/cmdline"):
        secret = Path(path).read_text().strip() if Path(path).exists() else ""
        assert not secret or secret not in text
    assert "warmcell-" not in text


@pytest.mark.attack("LK-04")
@pytest.mark.claim("WC-LK-4")
def test_the_boot_has_no_id(cage: Cage) -> None:
    """A cage has one of its own, which stays the same as long as the cage does."""
    path = "/proc/sys/kernel/random/boot_id"
    code = f"print(open('{path}').read(), open('{path}').read(), open('/proc/sys/kernel/random/uuid').read())"
    seen = [cage.run(code).stdout.split() for _ in range(2)]
    for first, second, other in seen:
        assert first == second != other and str(UUID(first)) == first
    assert len({Path(path).read_text().strip(), seen[0][0], seen[1][0]}) == 3


@pytest.mark.attack("LK-04")
@pytest.mark.claim("WC-LK-4")
def test_a_program_finds_one_boot_id(cage: Cage) -> None:
    """Programs start as lists of calls, which are written once for many cells."""
    code = "cat /proc/sys/kernel/random/boot_id /proc/sys/kernel/random/boot_id"
    seen = [cage.run(code, language="command").stdout.split() for _ in range(3)]
    assert all(first == second for first, second in seen) and len({first for first, _ in seen}) == 3


@pytest.mark.attack("LK-05")
@pytest.mark.claim("WC-LK-3")
@pytest.mark.parametrize(
    "config", [ProcessConfig(pool_size=0, pool_min=0), ProcessConfig()], ids=["on demand", "pooled"]
)
def test_nothing_stays_for_the_next_run(cage: Cage, config: ProcessConfig) -> None:
    backend = cage.backend(config=config)
    leave = """
        places = ('/tmp', '/dev/shm', '/work', '/code', os.path.expanduser('~'), '/var/tmp', '.')
        for place in places:
            open(place + '/left', 'w').write(secret)
        shm = libc.shmget(0x5a4b, 4096, 0o1600)
        os.environ['LEFT'] = secret
        import builtins, json, sys
        builtins.left = json.left = sys.left = secret
        sys.modules['left'] = sys
        import socket
        server = socket.create_server(('127.0.0.1', 47111))
        fd = os.memfd_create('left')
        os.write(fd, secret.encode())
        """
    look = """
        import builtins, glob, json
        found = [p for p in ('/tmp', '/dev/shm', '/work', '/code', '/home/sandbox', '/var/tmp', '.')
                 if os.path.exists(p + '/left')]
        found += [n for n in ('left',) if hasattr(builtins, n) or hasattr(json, n) or n in sys.modules]
        found += [v for v in os.environ if v == 'LEFT']
        found += ['shm'] * (libc.shmget(0x5a4b, 4096, 0) >= 0)
        print(found, os.listdir('/tmp'), os.listdir('/dev/shm'), os.listdir('/work'), os.listdir('/home/sandbox'))
        """
    for _ in range(3):
        cage.run(guest(leave, secret=cage.canary.secret), backend=backend)
        assert cage.run(guest(look), backend=backend).stdout == "[] [] [] [] []\n"


@pytest.mark.attack("LK-06")
@pytest.mark.claim("WC-LK-3")
def test_concurrent_runs_do_not_see_each_other(cage: Cage) -> None:
    ends: list[str] = []
    owner = guest(
        """
        import time
        for place in ('/tmp', '/dev/shm', '/work', '/home/sandbox'):
            open(place + '/mine', 'w').write(secret)
        shm = libc.shmget(0x5a4c, 4096, 0o1666)
        time.sleep(1.2)
        print(sorted(open(p + '/mine').read() == secret for p in ('/tmp', '/dev/shm', '/work', '/home/sandbox')))
        """,
        secret=cage.canary.secret,
    )
    thread = threading.Thread(target=lambda: ends.append(cage.run(owner).stdout))
    thread.start()
    body = """
        import glob, time
        time.sleep(0.5)
        paths = ['/tmp/mine', '/dev/shm/mine', '/work/mine', '/home/sandbox/mine', '../mine', '/work/../work/mine']
        paths += [f'/proc/{pid}/{where}/mine' for pid in range(1, 40) for where in ('cwd', 'root/tmp', 'root/work')]
        for path in paths:
            attempt(path, lambda: open(path).read())
            attempt('write ' + path, lambda: open(path, 'r+').write('PWNED'))
        attempt('shm', lambda: syscall('shmget', 0x5a4c, 4096, 0))
        """
    outcome = cage.run(guest(body))
    outcome.check_refused()
    thread.join()
    assert ends == ["[True, True, True, True]\n"] and cage.canary.secret not in outcome.everything


_SOURCE = str(Path(warmcell.__file__).parent)


@pytest.mark.attack("LK-11")
@pytest.mark.claim("WC-LK-5")
@pytest.mark.parametrize(
    "code",
    [
        "1/0",
        "import traceback; traceback.print_stack()",
        "import faulthandler; faulthandler.dump_traceback()",
        "import inspect; print([frame.filename for frame in inspect.stack()])",
        "import threading\ndef f(): raise ValueError('x')\nt = threading.Thread(target=f); t.start(); t.join()",
        "raise SystemExit(ValueError('x'))",
        "def f(): f()\nf()",
        "print(",
        "import warnings; warnings.warn('x', stacklevel=9)",
        "import sys; sys.excepthook = None; 1/0",
        "import sys; print(sys.path, sys.argv, sys.orig_argv, sys.modules.keys(), __file__)",
        "open('/nonexistent')",
        "import os; os.abort()",
        "import nonexistent_module",
    ],
)
def test_errors_name_no_place_of_the_host(cage: Cage, code: str) -> None:
    outcome = cage.run(code)
    assert _SOURCE not in outcome.everything and os.path.dirname(_SOURCE) not in outcome.everything
    assert str(Path(__file__).parent) not in outcome.everything


@pytest.mark.attack("LK-11")
@pytest.mark.claim("WC-LK-5")
def test_frames_and_objects_lead_to_no_secret(cage: Cage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest is a fork of the zygote: what that held in memory, the guest can read."""
    monkeypatch.setenv("WARMCELL_CANARY", cage.canary.secret)
    body = """
        import gc
        frame, names = sys._getframe(), []
        while frame:
            names.append((frame.f_code.co_filename, repr(frame.f_locals)[:2000]))
            frame = frame.f_back
        print(names)
        hits = 0
        with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
            for line in maps:
                span, mode = line.split()[:2]
                first, last = (int(word, 16) for word in span.split('-'))
                if mode.startswith('rw'):
                    try:
                        memory.seek(first)
                        hits += memory.read(last - first).count(needle[::-1])
                    except (OSError, ValueError, OverflowError):
                        pass
        print('hits', hits)
        """
    reversed_secret = cage.canary.secret.encode()[::-1]
    outcome = cage.run(guest(body, needle=reversed_secret), backend=cage.backend())
    # The needle itself is reversed in the source, so that only the caller's copy could match.
    assert outcome.stdout.endswith("hits 0\n") or "hits 1\n" in outcome.stdout
    assert cage.canary.secret not in outcome.everything


@pytest.mark.attack("LK-11")
@pytest.mark.claim("WC-LK-5")
def test_a_report_that_the_guest_forges_stays_data(cage: Cage) -> None:
    """The worker's note about refused paths lies where the guest can write it."""
    forged = [
        '[[2, "/\\ud800\\u0000x"]]',
        '{"a": 1}',
        "[" * 60000,
        '[[2, "/' + "y" * 60000 + '"]]',
        "[[2, 7], [1], null]",
        "9" * 60000,
        "\\xff\\xfe",
        "",
    ]
    for text in forged:
        outcome = cage.run(f"open('/code/.warmcell-report', 'w').write({text!r}); print('end')")
        assert outcome.stdout == "end\n" and outcome.result.exit_code == 0
        for denial in outcome.result.denials:
            assert len(denial.what.encode()) <= 4096 and "\0" not in denial.what
    for code in ("os.mkfifo", "os.mkdir"):
        assert cage.run(f"import os; {code}('/code/.warmcell-report'); print('end')").stdout == "end\n"
    planted = f"import os; os.symlink('{cage.canary.file}', '/code/.warmcell-report'); print('end')"
    assert cage.run(planted).stdout == "end\n"


@pytest.mark.attack("LK-11")
@pytest.mark.claim("WC-LK-5")
def test_an_unknown_program_is_named_as_the_guest_knows_it(cage: Cage) -> None:
    try:
        text = cage.run("definitely-not-a-program --x", "command").everything
    except SandboxError as error:
        text = str(error)
    assert _SOURCE not in text
