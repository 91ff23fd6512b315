"""PT-11: when the supervisor dies, however it dies, everything of it is gone within a second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.helpers import eventually

import warmcell
from warmcell.cage.linux.processes import descendants

_SOURCE = os.path.dirname(os.path.dirname(warmcell.__file__))

_SUPERVISOR = """
    import os, signal, sys, threading, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored
    sys.path.insert(0, {source!r})
    from warmcell.backends.process.backend import ProcessBackend
    from warmcell.core.types import ExecRequest
    from warmcell.languages.config import ProcessConfig
    backend = ProcessBackend(ProcessConfig(pool_size={pool}, pool_min={pool}), enforcer={enforcer!r})
    code = '''
    import os, signal, time
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
    time.sleep(300)
    '''
    import textwrap
    request = ExecRequest("python", textwrap.dedent(code), 300)
    for _ in range({runs}):
        threading.Thread(target=backend.execute_blocking, args=(request,), daemon=True).start()
    if not {runs}:
        backend.execute_blocking(ExecRequest("python", "print(1)", 20))
    time.sleep({settle})
    if {forks}:
        import multiprocessing
        context = multiprocessing.get_context("fork")
        for _ in range(2):
            context.Process(target=time.sleep, args=(300,)).start()
    print("up", flush=True)
    time.sleep(300)
    """


def _alive(pids: set[int]) -> set[int]:
    """Those that could still run: neither ended nor, memory gone, waiting for somebody to reap what they leave."""
    found = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        except OSError:
            continue
        if state != "Z" and pages:
            found.add(pid)
    return found


def _start(**options: object) -> tuple[subprocess.Popen[str], set[int]]:
    values = {"source": _SOURCE, "pool": 0, "runs": 0, "forks": False, "enforcer": "auto", "settle": 1.2, **options}
    script = textwrap.dedent(_SUPERVISOR).format(**values)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    assert eventually(lambda: len(list(descendants(process.pid))) > 3)
    return process, set(descendants(process.pid))


def _end(process: subprocess.Popen[str], spare: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    for pid in spare:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.attack("PT-11")
@pytest.mark.claim("WC-RX-5")
@pytest.mark.parametrize(
    "options",
    [
        {"runs": 3},
        {"pool": 3},
        {"runs": 2, "pool": 2},
        {"runs": 2, "pool": 2, "forks": True},
        {"pool": 2, "forks": True},
        {"runs": 2, "enforcer": "landlock"},
        {"runs": 2, "enforcer": None},
    ],
    ids=["running", "waiting", "both", "with forks of the caller", "waiting, with forks", "landlock", "bare"],
)
def test_no_guest_survives_its_supervisor(options: dict[str, object]) -> None:
    process, below = _start(**options)
    own_forks = {pid for pid in below if _is_fork_of(process.pid, pid)}
    guests = below - own_forks
    assert len(guests) >= 2
    _end(process)
    try:
        assert eventually(lambda: not _alive(guests)), f"still alive: {_alive(guests)}"
    finally:
        for pid in own_forks & _alive(own_forks):
            os.kill(pid, signal.SIGKILL)


def _is_fork_of(parent: int, pid: int) -> bool:
    """A plain copy of the caller has its command line; zygotes and cells have another."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.attack("PT-11")
@pytest.mark.claim("WC-RX-5")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGABRT, signal.SIGHUP])
def test_other_deaths_leave_nothing_either(number: int) -> None:
    process, guests = _start(runs=1, pool=1, settle=0.8)
    process.send_signal(number)
    try:
        assert eventually(lambda: not _alive(guests)), f"still alive: {_alive(guests)}"
    finally:
        _end(process)


@pytest.mark.attack("PT-11")
@pytest.mark.claim("WC-RX-5")
def test_a_stopped_supervisor_keeps_nothing_alive_when_killed() -> None:
    process, guests = _start(runs=2, pool=1)
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    _end(process)
    assert eventually(lambda: not _alive(guests))


@pytest.mark.attack("PT-11")
@pytest.mark.claim("WC-RX-5")
def test_cells_without_their_zygote_end_with_the_supervisor() -> None:
    process, below = _start(runs=2)
    zygotes = [pid for pid in below if _parent(pid) == process.pid]
    for pid in zygotes:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.3)
    _end(process)
    assert eventually(lambda: not _alive(below)), _alive(below)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
