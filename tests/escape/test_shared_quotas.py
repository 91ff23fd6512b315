"""S2-05: what the kernel counts per user of the host. One guest takes all that it can get; another runs as if alone."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest, indent
from tests.helpers import eventually

from warmcell.cage.linux.processes import descendants
from warmcell.policy.builder import SandboxPolicyBuilder

_TOOLS = """
    import fcntl, select, signal, socket, time
    def until_refused(act, most):
        try:
            for _ in range(most):
                act()
        except OSError:
            pass
    def pass_on(count):
        left, right = socket.socketpair()
        keep.append((left, right))
        left.setblocking(False)
        until_refused(lambda: socket.send_fds(left, [b'x'], [0] * 100), count)
        return left
    keep = []
    """

#: What one guest takes, and what another one wants of the same.
_QUOTAS = {
    "descriptors in flight": (
        "[pass_on(4) for _ in range(40)]",
        "left, right = socket.socketpair(); socket.send_fds(left, [b'x'], [0])",
    ),
    "descriptors in flight without a holder": (
        """
        for _ in range(90):
            left, right = socket.socketpair()
            outer = socket.socketpair()
            keep.append(outer)
            until_refused(lambda: socket.send_fds(left, [b'x'], [0] * 9), 1)
            until_refused(lambda: socket.send_fds(outer[0], [b'x'], [left.fileno(), right.fileno()]), 1)
            left.close(), right.close()
        pass_on(2)
        """,
        "",
    ),
    "pages of pipes": (
        """
        for _ in range(8):
            if os.fork() == 0:
                pipes = [os.pipe() for _ in range(450)]
                time.sleep(60)
        time.sleep(0.5)
        """,
        "read, write = os.pipe(); os.set_blocking(write, False); assert os.write(write, bytes(60_000)) == 60_000",
    ),
    "large pipes": (
        """
        pipes = [os.pipe() for _ in range(200)]
        until_refused(lambda: [fcntl.fcntl(read, 1031, 1 << 20) for read, _ in pipes], 1)
        """,
        "read, write = os.pipe(); os.set_blocking(write, False); assert os.write(write, bytes(60_000)) == 60_000",
    ),
    "inotify": (
        """
        for _ in range(4):
            if os.fork() == 0:
                until_refused(lambda: keep.append(syscall('inotify_init1', 0)), 500)
                time.sleep(60)
        time.sleep(0.5)
        """,
        "syscall('inotify_init1', 0)",
    ),
    "watched descriptors": (
        """
        for _ in range(12):
            if os.fork() == 0:
                ends = [os.eventfd(0) for _ in range(500)]
                for _ in range(400):
                    poll = select.epoll()
                    keep.append(poll)
                    [poll.register(end) for end in ends]
                time.sleep(60)
        time.sleep(0.5)
        """,
        "select.epoll().register(0)",
    ),
    "signals": (
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, [40])
        value = (ctypes.c_long * 1)(0)
        for _ in range(100_000):
            if libc.sigqueue(os.getpid(), 40, value) < 0:
                break
        """,
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, [40])
        assert libc.sigqueue(os.getpid(), 40, (ctypes.c_long * 1)(0)) == 0
        """,
    ),
    "timers": (
        """
        made = ctypes.c_void_p()
        until_refused(lambda: syscall('timer_create', 1, None, ctypes.byref(made)), 100_000)
        """,
        "syscall('timer_create', 1, None, ctypes.byref(ctypes.c_void_p()))",
    ),
    "message queues": (
        "assert ctypes.CDLL('librt.so.1').mq_open(b'/q', os.O_CREAT | os.O_RDWR, 0o600, None) < 0",
        "",
    ),
    "locked segments": (
        """
        for _ in range(2000):
            if libc.shmctl(libc.shmget(0, 65536, 0o1600), 11, None) < 0:
                break
        """,
        "assert libc.mlock(ctypes.create_string_buffer(4096), 4096) == 0",
    ),
}


@contextmanager
def _few_descriptors() -> Iterator[None]:
    """As most programs have: what a user has in flight is compared with what its sender may open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.attack("S2-05")
@pytest.mark.claim("WC-RX-7")
@pytest.mark.parametrize("name", list(_QUOTAS))
def test_one_guest_leaves_others_their_share(cage: Cage, tmp_path: Path, name: str) -> None:
    takes, wants = (_TOOLS.rstrip(" ") + indent(part or "pass") + "\n    " for part in _QUOTAS[name])
    shared = tmp_path / "shared"
    shared.mkdir()
    greedy = cage.backend(SandboxPolicyBuilder().allow_read_write(shared).allow_process_spawn().build())
    waits = "open(shared + '/taken', 'w').close()\n    while not os.path.exists(shared + '/tried'): time.sleep(0.05)\n"
    code = guest(takes + waits, shared=str(shared))
    ended = threading.Event()

    def run() -> None:
        try:
            cage.run(code, backend=greedy, timeout=20, memory_mb=1024, processes=64)
        finally:
            ended.set()

    with _few_descriptors():
        thread = threading.Thread(target=run)
        thread.start()
        assert eventually(lambda: ended.is_set() or (shared / "taken").exists())
        try:
            # A guest that takes more than its share is found out in a moment, on a busy host in a longer one; and what other
            # tests of this user have in flight just now counts as well.
            is_fine = eventually(lambda: all(_has(cage, wants) for _ in range(2)))
        finally:
            (shared / "tried").touch()
            thread.join()
    assert is_fine


def _has(cage: Cage, wants: str) -> bool:
    return cage.run(guest(wants + "print('fine')"), timeout=10).stdout == "fine\n"


@pytest.mark.attack("S2-05")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has more than one id to give")
def test_each_of_roots_guests_is_somebody_else_on_the_host(cage: Cage, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    code = (
        f"import os, time; os.chdir({str(shared)!r}); open(os.urandom(8).hex(), 'w').close()\n"
        "while not os.path.exists('seen'): time.sleep(0.02)"
    )
    backend = cage.backend(SandboxPolicyBuilder().allow_read_write(shared).allow_process_spawn().build())
    threads = [threading.Thread(target=cage.run, args=(code,), kwargs={"backend": backend}) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert eventually(lambda: len(list(shared.iterdir())) == 3)
        users = list(filter(None, map(_user_of, descendants(os.getpid()))))
    finally:
        (shared / "seen").touch()
        for thread in threads:
            thread.join()
    assert len({user for user in users if user >= 0x70000000}) >= 3
    assert {path.stat().st_uid for path in shared.iterdir()} == {
        0
    }  # what they leave is the caller's, whatever user they had


def _user_of(pid: int) -> int:
    """0 if the process has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return 0
