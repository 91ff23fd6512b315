"""S2-10: what a guest writes with its first line counts: all that was there before has been measured by then."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.escape.harness import ON_DEMAND, Cage, Outcome
from tests.helpers import PATIENCE, eventually, require

from warmcell import Sandbox
from warmcell.backends.process.backend import ProcessBackend
from warmcell.cage.linux.processes import children
from warmcell.core.errors import EnforcerUnavailable, SessionEnded
from warmcell.core.types import ExecRequest, Language, Limits
from warmcell.diagnosis.bench import wait_until_ready
from warmcell.enforcers.native import NativeEnforcer
from warmcell.languages.config import ProcessConfig
from warmcell.policy.builder import SandboxPolicyBuilder

_LIMIT_MB = 16
#: Names that take longer to go through than a guest takes to write more than it may.
_MANY = 30_000
_POOLED = ProcessConfig(pool_size=1, pool_min=1)

#: By language: writes 24 MB at once, below the directory that comes last, and then waits to be ended.
_FILLS = {
    "python": "import os\nos.chdir('{place}')\n"
    "for at in range(24): open(str(at), 'wb').write(bytes(1 << 20))\n"
    "import time; time.sleep(5); print('GOT AWAY')",
    "command": "cd '{place}' && head -c 12M /dev/zero > a && head -c 12M /dev/zero > b && sleep 5 && echo GOT AWAY",
    "javascript": "const fs = require('fs');\n"
    "for (let at = 0; at < 24; at++) fs.writeFileSync(`{place}/${{at}}`, Buffer.alloc(1 << 20));\n"
    "setTimeout(() => console.log('GOT AWAY'), 5000);",
}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("large")
    (directory / "first").touch()
    for at in range(_MANY):  # names of one file: a host that has just removed many is slow to make others
        os.link(directory / "first", directory / str(at))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def shared(large: Path) -> Iterator[Path]:
    place = large / "last"
    place.mkdir()
    yield large
    shutil.rmtree(place)


def _backend(cage: Cage, shared: Path, **options: object) -> ProcessBackend:
    policy = SandboxPolicyBuilder().allow_read_write(shared).allow_process_spawn().build()
    try:
        return cage.backend(policy, **options)
    except EnforcerUnavailable as reason:
        require(False, str(reason))
        raise


def _fill(cage: Cage, backend: ProcessBackend, shared: Path, language: str = "python") -> Outcome:
    code = _FILLS[language].format(place=shared / "last")
    return cage.run(code, language, backend=backend, disk_mb=_LIMIT_MB, timeout=20)


def _is_ended_by_its_disk(outcome: Outcome) -> bool:
    return "GOT AWAY" not in outcome.stdout and "disk" in {denial.kind for denial in outcome.result.denials}


def _empty(shared: Path) -> None:
    for path in (shared / "last").iterdir():
        path.unlink()


@pytest.mark.attack("S2-10")
@pytest.mark.claim("WC-RX-3")
@pytest.mark.parametrize(
    ("language", "options"),
    [
        pytest.param("python", {"config": ON_DEMAND}, id="python"),
        pytest.param("python", {"config": _POOLED}, id="python that waited"),
        pytest.param("command", {"config": ON_DEMAND}, id="program"),
        pytest.param("command", {"config": _POOLED}, id="program that waited"),
        pytest.param("javascript", {"config": _POOLED}, id="node that waited", marks=pytest.mark.needs("node")),
        pytest.param("python", {"enforcer": "landlock"}, id="landlock"),
        pytest.param("command", {"enforcer": "landlock"}, id="program of class landlock"),
    ],
)
def test_what_is_written_while_much_is_there_to_measure(
    cage: Cage, shared: Path, language: str, options: dict[str, object]
) -> None:
    backend = _backend(cage, shared, **options)
    for _ in range(3):
        outcome = _fill(cage, backend, shared, language)
        assert _is_ended_by_its_disk(outcome), outcome
        _empty(shared)


@pytest.mark.attack("S2-10")
@pytest.mark.claim("WC-RX-3")
def test_what_a_wrapped_command_writes_while_much_is_there_to_measure(shared: Path) -> None:
    limited = SandboxPolicyBuilder().allow_read_write(shared).allow_process_spawn().build()
    policy = replace(limited, limits=Limits(disk_mb=_LIMIT_MB))
    code = _FILLS["command"].format(place=shared / "last")
    wrapped = NativeEnforcer().wrap_command("/bin/sh", ["-c", code], policy)
    ended = subprocess.run(wrapped.argv, env=dict(wrapped.env), capture_output=True, timeout=60, check=False)
    assert ended.stdout == b"" and ended.returncode != 0, ended


@pytest.mark.attack("S2-10")
@pytest.mark.claim("WC-RX-3")
def test_what_a_live_cage_writes_while_much_is_there_to_measure(shared: Path) -> None:
    with Sandbox(shared, limits=Limits(disk_mb=_LIMIT_MB)) as sandbox:
        process = sandbox.spawn(_FILLS["command"].format(place="last"))
        with pytest.raises(SessionEnded, match="disk"):
            process.wait(60)


def _watcher(backend: ProcessBackend) -> int:
    """The manager's child that is a plain copy of it, as an init is only at its very beginning."""
    manager = backend.zygote_pids[0]
    words = _command_line(manager)
    copies: list[int] = []

    def is_alone() -> bool:
        copies[:] = [pid for pid in children(manager) if _command_line(pid) == words]
        return len(copies) == 1

    assert eventually(is_alone), f"one of {copies} is the watcher"
    return copies[0]


def _command_line(pid: int) -> bytes:
    """Empty if the process has ended: the manager reaps its cells at any time."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@contextmanager
def _stop_watcher(watcher: int, seconds: float) -> Iterator[None]:
    """As on a host that gives it no turn."""
    os.kill(watcher, signal.SIGSTOP)
    waking = threading.Timer(seconds, os.kill, (watcher, signal.SIGCONT))
    waking.start()
    try:
        yield
    finally:
        os.kill(watcher, signal.SIGCONT)
        waking.cancel()
        waking.join()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "shared" / "last").mkdir(parents=True)
    return tmp_path / "shared"


def _make_pool(cage: Cage, shared: Path) -> tuple[ProcessBackend, Callable[[], None]]:
    """A backend with a cell that waits, and what waits for the next one."""
    backend = _backend(cage, shared, config=_POOLED)
    cage.run("print(1)", backend=backend, disk_mb=_LIMIT_MB, timeout=20)
    wait = wait_until_ready(backend, 1)
    wait()
    return backend, wait


@pytest.mark.attack("S2-10")
@pytest.mark.claim("WC-RX-3")
@pytest.mark.parametrize("language", ["python", "command"])
def test_what_is_written_while_the_watcher_is_held_up(cage: Cage, small: Path, language: str) -> None:
    backend, wait = _make_pool(cage, small)
    for _ in range(5):
        wait()
        with _stop_watcher(_watcher(backend), 0.2):
            outcome = _fill(cage, backend, small, language)
        assert _is_ended_by_its_disk(outcome), outcome
        _empty(small)


@pytest.mark.attack("S2-10")
def test_what_the_host_did_while_a_cell_waited_is_not_its_guests(cage: Cage, small: Path) -> None:
    """Neither counts what was added against it, nor what was removed in its favour."""
    backend, wait = _make_pool(cage, small)
    (small / "added").write_bytes(bytes(40 << 20))
    looks = "import time; time.sleep(0.6); print('well')"
    outcome = cage.run(looks, backend=backend, disk_mb=_LIMIT_MB, timeout=20)
    assert (outcome.stdout, outcome.result.denials) == ("well\n", [])
    wait()
    (small / "added").unlink()
    outcome = _fill(cage, backend, small)
    assert _is_ended_by_its_disk(outcome), outcome


def test_the_time_that_measuring_takes_is_not_the_runs(cage: Cage, small: Path) -> None:
    backend, _ = _make_pool(cage, small)
    with _stop_watcher(_watcher(backend), 8.0):
        outcome = cage.run("print('well')", backend=backend, disk_mb=_LIMIT_MB, timeout=6)
    assert (outcome.status, outcome.stdout) == ("ended", "well\n")


async def test_who_is_being_measured_can_be_given_up(cage: Cage, small: Path) -> None:
    backend, _ = _make_pool(cage, small)
    request = ExecRequest(Language.PYTHON, "print('well')", 20, limits=Limits(disk_mb=_LIMIT_MB))
    with _stop_watcher(_watcher(backend), 300.0):
        started = time.monotonic()
        task = asyncio.create_task(backend.execute(request))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < PATIENCE
