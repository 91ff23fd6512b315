"""KR-16: signals and settings stay inside the run; supervisor, init and siblings are out of reach."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.escape.harness import Cage, Outcome
from tests.escape.payloads import guest
from tests.escape.weakened import Weakened

from warmcell.policy.builder import SandboxPolicyBuilder


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "30"])
    yield process
    assert process.poll() is None, "a process of the host was killed"
    process.kill()
    process.wait()


@pytest.mark.attack("KR-16")
@pytest.mark.claim("WC-PR-1")
def test_no_signal_reaches_the_host(cage: Cage, victim: subprocess.Popen[bytes]) -> None:
    received: list[int] = []
    previous = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    body = """
        import signal
        for pid in (victim, supervisor, group, -victim, -group, 1, -1 << 20):
            for number in (0, 10, 19, 9):
                if pid > 9 or pid < -9 or pid == 1:
                    attempt(f'kill {pid} {number}', lambda: os.kill(pid, number))
                    attempt(f'tgkill {pid} {number}', lambda: syscall('tgkill', pid, pid, number))
                    attempt(f'queue {pid} {number}', lambda: syscall('rt_sigqueueinfo', pid, number, bytes(128)))
                    attempt(f'pidfd {pid} {number}', lambda: signal.pidfd_send_signal(os.pidfd_open(pid), number))
        print('alive')
        """
    try:
        code = guest(body, victim=victim.pid, supervisor=os.getpid(), group=os.getpgid(0))
        outcome = cage.run(code)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert received == []
    assert outcome.stdout.endswith("alive\n") and outcome.result.exit_code == 0
    # The kernel accepts and drops what pid 1 of a namespace has no handler for; probing it with 0 is harmless.
    through = [name for name, end in outcome.report().items() if end.startswith("ok:") and " 1 " not in name]
    assert through == []


@pytest.mark.attack("KR-16")
@pytest.mark.parametrize("number", [1, 2, 3, 6, 9, 10, 12, 13, 14, 15, 17, 18, 19, 20, 23, 34, 64])
def test_init_cannot_be_disturbed(cage: Cage, number: int) -> None:
    code = f"import os\ntry:\n    os.kill(1, {number})\nexcept OSError:\n    pass\nprint('alive')"
    outcome = cage.run(code)
    assert outcome.stdout == "alive\n" and outcome.result.exit_code == 0


@pytest.mark.attack("KR-16")
@pytest.mark.parametrize(
    "action",
    [
        "resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))",
        "resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))",
        "resource.prlimit(1, resource.RLIMIT_AS, (0, 0))",
        "os.setpriority(os.PRIO_PROCESS, 1, 19)",
        "os.setpriority(os.PRIO_USER, 0, 19)",
        "os.setpriority(os.PRIO_PGRP, 1, 19)",
        "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
        "os.sched_setaffinity(1, [0])",
    ],
)
def test_init_keeps_its_own_limits(cage: Cage, action: str) -> None:
    """It is what watches over memory where no control group does: slowing or starving it would switch that off."""
    body = """
        import resource
        def facts():
            with open('/proc/1/stat') as file:
                fields = file.read().rpartition(')')[2].split()
            with open('/proc/1/limits') as file:
                return fields[15:17], fields[38], file.read(), os.sched_getaffinity(1)
        before = facts()
        attempt('it', lambda: eval(action))
        print('same' if facts() == before else 'CHANGED')
        """
    outcome = cage.run(guest(body, action=action), timeout=6)
    assert outcome.stdout.endswith("same\n") and outcome.result.exit_code == 0


@pytest.mark.attack("KR-16")
@pytest.mark.claim("WC-PR-1")
@pytest.mark.parametrize("number", [9, 19, 15])
def test_killing_everybody_kills_only_itself(cage: Cage, victim: subprocess.Popen[bytes], number: int) -> None:
    ends: list[Outcome] = []
    sibling = threading.Thread(
        target=lambda: ends.append(cage.run("import time; time.sleep(0.7); print('sibling lives')", timeout=10))
    )
    sibling.start()
    code = f"""
import os
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        import time
        time.sleep(20)
os.kill(-1, {number})
os.kill(os.getpid(), {number})
"""
    outcome = cage.run(code, timeout=1.5 if number == 19 else 20)
    sibling.join()
    assert ends[0].stdout == "sibling lives\n"
    if number == 19:
        assert outcome.status == "timeout"
    else:
        assert outcome.result.signal == number


@pytest.mark.attack("KR-16")
def test_a_run_reports_its_own_death(cage: Cage) -> None:
    outcome = cage.run("import os; print('before', flush=True); os.kill(os.getpid(), 9)")
    assert outcome.stdout == "before\n" and outcome.result.signal == 9 and outcome.result.exit_code == 137


@pytest.mark.attack("KR-16")
@pytest.mark.claim("WC-RX-2")
def test_init_keeps_its_descriptors(cage: Cage, tmp_path: Path) -> None:
    """Calls that init carries out or looks at must cost it nothing that stays: a blind init watches nothing."""
    (tmp_path / "data").mkdir()
    policy = SandboxPolicyBuilder().allow_read(tmp_path / "data").allow_process_spawn().build()
    body = """
        import socket, struct
        server = socket.socket(socket.AF_UNIX)
        server.bind('/tmp/s')
        server.listen()
        address = struct.pack('=H', 1) + b'/tmp/s\\0'
        for number in range(400):
            libc.connect(number % 3, address, len(address))
        for odd in (b'', b'\\1', b'\\1\\0', b'\\1\\0/', b'\\1\\0/proc/1/fd/5\\0', b'\\1\\0' + b'/' * 126, b'\\1\\0\\xff\\xfe'):
            for fd in (0, -1, 1 << 31, (1 << 63) - 1):
                libc.syscall(ctypes.c_long(NR['connect']), ctypes.c_long(fd), odd, ctypes.c_long(len(odd)))
                libc.syscall(ctypes.c_long(NR['connect']), ctypes.c_long(fd), ctypes.c_long(-1), ctypes.c_long(-1))
        client = socket.socket(socket.AF_UNIX)
        client.connect('/tmp/s')
        client.sendall(b'own socket works')
        print(server.accept()[0].recv(99).decode(), flush=True)
        with open('/proc/1/status') as file:
            print(*[line for line in file if line.startswith('FDSize')], flush=True)
        keep = [bytearray(b'x') * (1 << 20) for _ in range(300)]
        """
    outcome = cage.run(guest(body), backend=cage.backend(policy), memory_mb=128, timeout=30)
    assert outcome.stdout.startswith("own socket works\n") and outcome.status == "memory"
    assert int(outcome.stdout.split()[-1]) < 400, "the table of init's descriptors grew"


@pytest.mark.claim("WC-PR-1")
@pytest.mark.attack("S2-25")
def test_init_outlives_every_signal_of_its_guest(weakened: Weakened, tmp_path: Path) -> None:
    """Where Landlock knows nothing of signals, only its being pid 1 and without handlers protects it."""
    weakened.without(landlock=())
    body = """
        import signal, time
        for number in signal.valid_signals():
            attempt(number, lambda: os.kill(1, number))
        time.sleep(0.3)
        attempt('there', lambda: None)
        """
    for policy in (None, SandboxPolicyBuilder().allow_read(tmp_path).build()):
        assert weakened.run(body, policy)["there"] == "ok:None"
