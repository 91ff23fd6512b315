"""RX-01, 12-16: processes are bounded, and none of them outlives its run."""

from __future__ import annotations

import os
import textwrap
import threading
import time
from pathlib import Path

import pytest
from tests.escape.harness import Cage, Outcome
from tests.escape.payloads import guest
from tests.helpers import fork_child

from warmcell.policy.builder import SandboxPolicyBuilder

_BOMBS = {
    "fork": """
        made = 0
        for _ in range(2000):
            try:
                if os.fork() == 0:
                    time.sleep(9)
                    os._exit(0)
            except OSError as error:
                print(made, errno.errorcode[error.errno], flush=True)
                break
            made += 1
        """,
    "double fork": """
        made = 0
        for _ in range(100):
            try:
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0:
                        time.sleep(9)
                    os._exit(0)
                made += 1
                os.wait()
            except OSError as error:
                print(made, errno.errorcode[error.errno], flush=True)
                break
        """,
    "thread": """
        made = 0
        threading.stack_size(65536)
        for _ in range(2000):
            try:
                threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
            except RuntimeError:
                print(made, 'EAGAIN', flush=True)
                break
            made += 1
        """,
    "zombies": """
        made = 0
        for _ in range(2000):
            try:
                if os.fork() == 0:
                    os._exit(0)
            except OSError as error:
                print(made, errno.errorcode[error.errno], flush=True)
                break
            made += 1
        """,
}


@pytest.mark.attack("RX-01")
@pytest.mark.claim("WC-RX-3")
@pytest.mark.parametrize("name", list(_BOMBS))
def test_bombs_hit_the_limit(cage: Cage, name: str) -> None:
    body = "import threading, time\n" + textwrap.dedent(_BOMBS[name]) + "\nos._exit(0)\n"
    outcome = cage.run(guest("") + body, timeout=8, processes=32)
    made, error = outcome.stdout.split()[:2]
    assert int(made) <= 34 and error == "EAGAIN"


@pytest.mark.attack("RX-01")
@pytest.mark.claim("WC-KR-1")
def test_a_guest_makes_no_children_of_the_manager(cage: Cage) -> None:
    """While the manager reaps them, all other cells wait; and no cell would report their processor time."""
    body = "attempt('sibling', lambda: syscall('clone', 0x8000 | 17, 0, 0, 0, 0) or os._exit(0))"
    cage.run(guest(body)).check_refused()


@pytest.mark.attack("RX-01")
@pytest.mark.claim("WC-RX-1")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        # The depth bounds it where nothing else does: 2 ** 10 processes.
        ("command", "bomb() { [ $1 -gt 0 ] && { bomb $(($1 - 1)) | bomb $(($1 - 1)) & }; }; bomb 10; sleep 20"),
        (
            "python",
            "import os\nfor _ in range(10):\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
            "import time; time.sleep(20)",
        ),
        (
            "python",
            "import os, time\nend = time.time() + 20\nwhile time.time() < end:\n    try:\n        if os.fork() == 0:\n"
            "            os.setsid()\n            if os.fork():\n                os._exit(0)\n"
            "            time.sleep(1)\n            os._exit(0)\n    except OSError:\n        pass\n    time.sleep(0.01)",
        ),
    ],
    ids=["shell", "doubling", "endless"],
)
def test_bombs_end_at_the_deadline(cage: Cage, language: str, code: str) -> None:
    outcome = cage.run(code, language, timeout=1.0, processes=48)
    assert outcome.status in ("timeout", "ended")


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    shared = tmp_path / "shared"
    shared.mkdir()
    return shared / "marker"


def _marking(cage: Cage, marker: Path, body: str, timeout: float) -> Outcome:
    policy = SandboxPolicyBuilder().allow_read_write(marker.parent).allow_process_spawn().build()
    outcome = cage.run(guest(body, marker=str(marker)), timeout=timeout, backend=cage.backend(policy))
    returned = time.time()
    time.sleep(0.8)
    # On a host that stands still the deadline itself is late, and what the guest did until then was in its time.
    assert not marker.exists() or marker.stat().st_mtime <= returned, "something outlived its run"
    return outcome


_DAEMON = """
    import signal, subprocess, time
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.close(0)
        if not {keeps}:
            os.close(1)
            os.close(2)
        time.sleep({delay})
        open(marker, 'w').write('alive')
        os._exit(0)
    """


def _daemon(keeps: bool, delay: float) -> str:
    return _DAEMON.rstrip(" ").format(keeps=keeps, delay=delay)


@pytest.mark.attack("RX-12")
@pytest.mark.claim("WC-RX-1")
@pytest.mark.claim("WC-RX-5")
def test_a_daemon_does_not_survive_the_timeout(cage: Cage, marker: Path) -> None:
    body = _daemon(keeps=False, delay=1.3) + "    time.sleep(20)\n"
    assert _marking(cage, marker, body, 1.0).status == "timeout"


@pytest.mark.attack("RX-13")
@pytest.mark.claim("WC-RX-5")
def test_a_background_child_does_not_survive_a_normal_exit(cage: Cage, marker: Path) -> None:
    outcome = _marking(cage, marker, _daemon(keeps=False, delay=0.5) + "    print('done')\n", 20.0)
    assert outcome.stdout == "done\n" and outcome.result.exit_code == 0


@pytest.mark.attack("RX-14")
@pytest.mark.claim("WC-RX-5")
def test_a_child_that_keeps_the_pipes_holds_nobody_up(cage: Cage, marker: Path) -> None:
    outcome = _marking(cage, marker, _daemon(keeps=True, delay=300) + "    print('done')\n", 20.0)
    assert (outcome.status, outcome.stdout) == ("ended", "done\n")  # held up, it would meet its timeout


@pytest.mark.attack("RX-14")
@pytest.mark.claim("WC-RX-5")
def test_shell_background_jobs_hold_nobody_up(cage: Cage) -> None:
    outcome = cage.run("(sleep 300; echo late) & echo now", "command", timeout=20)
    assert (outcome.status, outcome.stdout) == ("ended", "now\n")


@pytest.mark.attack("RX-14")
@pytest.mark.claim("WC-RX-5")
def test_a_fork_of_the_caller_holds_nobody_up(cage: Cage) -> None:
    """A copy of the caller, made while a run is under way, must not keep that run's pipes open."""
    ends: list[Outcome] = []
    code = "import sys, time\ntime.sleep(0.5)\nprint(len(sys.stdin.buffer.read()))"
    thread = threading.Thread(target=lambda: ends.append(cage.run(code, timeout=30, stdin=b"x" * 300_000)))
    thread.start()
    time.sleep(0.25)
    copy = fork_child(lambda: time.sleep(60))
    try:
        thread.join()
    finally:
        os.kill(copy, 9)
        os.waitpid(copy, 0)
    assert ends[0].stdout == "300000\n"


@pytest.mark.attack("RX-15")
@pytest.mark.claim("WC-RX-1")
@pytest.mark.parametrize(
    "body",
    [
        "signal.pthread_sigmask(signal.SIG_SETMASK, range(1, 65)); time.sleep(300)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "[os.fork() == 0 and os.kill(os.getpid(), signal.SIGSTOP) for _ in range(3)]; os.kill(os.getpid(), signal.SIGSTOP)",
        "os.fork() and os.kill(0, signal.SIGSTOP)",
        "os.fork() or time.sleep(300); os.kill(-1, signal.SIGSTOP); os.kill(os.getpid(), signal.SIGSTOP)",
        "subprocess.Popen(['sleep', '300']); subprocess.Popen(['sleep', '300'], preexec_fn=os.setsid); time.sleep(300)",
        "open('/dev/zero').read(1); threading.Thread(target=time.sleep, args=(300,)).start(); syscall('exit', 0)",
        "os.read(os.pipe()[0], 1)",
        "held = open('/tmp/l', 'w'); fcntl.flock(held, 2); fcntl.flock(open('/tmp/l'), 2)",
        "os.mkfifo('/tmp/f'); open('/tmp/f')",
        "syscall('futex', ctypes.byref(ctypes.c_int(0)), 0, 0, 0, 0, 0)",
        "signal.pause()",
        "signal.signal(signal.SIGALRM, lambda *a: os.fork()); signal.setitimer(0, .05, .05); [time.sleep(1) for _ in range(300)]",
    ],
)
def test_nothing_puts_off_the_deadline(cage: Cage, body: str) -> None:
    setup = "import fcntl, os, signal, subprocess, threading, time\n"
    outcome = cage.run(guest("") + setup + "print('begun', flush=True)\n" + body, timeout=2.5, processes=64)
    assert outcome.status == "timeout" and outcome.stdout.startswith("begun\n")


@pytest.mark.attack("RX-16")
@pytest.mark.claim("WC-RX-1")
def test_a_spinning_run_leaves_room_for_others(cage: Cage) -> None:
    ends: list[Outcome] = []
    count = 4 * (os.cpu_count() or 1)
    spin = f"""
import os, threading
def burn():
    while True:
        pass
for _ in range({count}):
    if os.fork() == 0:
        burn()
    threading.Thread(target=burn, daemon=True).start()
burn()
"""
    thread = threading.Thread(target=lambda: ends.append(cage.run(spin, timeout=2.5)))
    thread.start()
    time.sleep(0.8)
    hello = cage.run("print('hello')", timeout=60)
    thread.join()
    assert hello.stdout == "hello\n" and ends[0].status == "timeout"


@pytest.mark.attack("RX-16")
@pytest.mark.claim("WC-RX-1")
@pytest.mark.parametrize("way", ["one process", "threads", "children", "children without a parent that waits"])
def test_cpu_time_is_bounded_for_the_whole_tree(cage: Cage, way: str) -> None:
    burn = "def burn(s):\n    end = time.thread_time() + s\n    while time.thread_time() < end: pass\n"
    body = {
        "one process": "burn(6)",
        "threads": (
            "burning = [threading.Thread(target=burn, args=(3,)) for _ in range(3)]\n"
            "for thread in burning: thread.start()\nfor thread in burning: thread.join()"
        ),
        "children": "for _ in range(120):\n    if os.fork() == 0: burn(.05); os._exit(0)\n    os.wait()",
        "children without a parent that waits": (
            "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nfor _ in range(150):\n"
            "    if os.fork() == 0: burn(.04); os._exit(0)\n    try: os.wait()\n    except ChildProcessError: pass"
        ),
    }[way]
    code = f"import os, signal, threading, time\n{burn}{body}\nprint('GOT AWAY')"
    outcome = cage.run(code, timeout=90, cpu_seconds=1.0)  # a loaded machine takes its time over that second
    assert "GOT AWAY" not in outcome.stdout
    assert any(denial.kind == "cpu" for denial in outcome.result.denials), outcome
    assert outcome.result.signal == 24


@pytest.mark.attack("RX-16")
@pytest.mark.claim("WC-RX-3")
@pytest.mark.parametrize("way", ["inotify", "queued signals"])
def test_quotas_of_the_user_are_not_used_up(cage: Cage, way: str) -> None:
    """Some kernel quotas count per user, across namespaces: one guest must not take them all from everybody."""
    hog = {
        "inotify": "while libc.inotify_init1(0) >= 0: pass",
        "queued signals": (
            "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [40])\n"
            "for _ in range(200000):\n    if libc.sigqueue(os.getpid(), 40, None) != 0: break"
        ),
    }[way]
    use = {
        "inotify": "print(libc.inotify_init1(0) >= 0)",
        "queued signals": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [40])\n"
        "print(libc.sigqueue(os.getpid(), 40, None) == 0)",
    }[way]
    thread = threading.Thread(
        target=lambda: cage.run(guest("") + hog + "\nimport time; time.sleep(1.5)", timeout=8, open_files=4000)
    )
    thread.start()
    time.sleep(1.2)
    outcome = cage.run(guest("") + use)
    thread.join()
    assert outcome.stdout == "True\n"
