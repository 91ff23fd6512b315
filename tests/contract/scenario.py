"""Scenes that need a process of their own: run as `python -m tests.contract.scenario SCENE BACKEND`; prints JSON.

Forks, exits and a table of descriptors that is full are nothing to try inside the process that runs the tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.contract.conftest import BACKENDS, Kind
from tests.contract.processes import descendants, descriptors
from tests.contract.programs import Exit, Flood, Say, Sleep
from tests.helpers import eventually

from warmcell import ExecRequest, SandboxError

ROOT = Path(__file__).resolve().parents[2]
_HANGS_SECONDS = 120


def play(scene: Callable[[Kind], object], backend: str, seconds: float = 280) -> Any:
    """Plays a scene in a process of its own and returns what it reports."""
    command = [sys.executable, "-m", "tests.contract.scenario", scene.__name__, backend]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def outcome(kind: Kind, backend: Any, *steps: Any, timeout: float = 30) -> str:
    """The output of one run, or its error."""
    try:
        return str(asyncio.run(backend.execute(kind.request(*steps, timeout=timeout))).stdout)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def in_fork(action: Callable[[], str], *, leave: Callable[[], object]) -> str:
    """Returns what `action` returns in a forked child, which then ends by `leave`."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(_HANGS_SECONDS)
        os.write(writer, action().encode())
        os.close(writer)
        leave()
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    _, status = os.waitpid(pid, 0)
    return text if status == 0 else f"{text} (status {status})"


def child_runs_and_exits(kind: Kind) -> object:
    """The child runs something and ends as programs do, with all that happens at exit; then the parent goes on."""
    backend = kind.make()
    before = outcome(kind, backend, Say("before"))
    # In the parent this would be skipped by the exit that the child takes.
    child = in_fork(lambda: outcome(kind, backend, Say("child")), leave=lambda: sys.exit(0))
    return [before, child, outcome(kind, backend, Say("after"))]


def child_closes(kind: Kind) -> object:
    """The child closes the backend that it inherited; for the parent that means nothing."""
    backend = kind.make()
    before = outcome(kind, backend, Say("before"))

    def close() -> str:
        asyncio.run(backend.aclose())
        return outcome(kind, backend, Say("x")).split(":")[0]

    child = in_fork(close, leave=lambda: os._exit(0))
    return [before, child, outcome(kind, backend, Say("after"))]


def child_while_running(kind: Kind) -> object:
    """A run of the parent's is under way while the child is forked, runs, and exits."""
    backend = kind.make()
    outcome(kind, backend, Say("warm"))
    stays = kind.guests(backend)
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(outcome(kind, backend, Sleep(3), Say("parent"))))
    thread.start()
    eventually(lambda: kind.is_imaginary or kind.guests(backend) - stays)
    child = in_fork(lambda: outcome(kind, backend, Say("child")), leave=lambda: sys.exit(0))
    thread.join()
    return [*seen, child]


def children_of_a_busy_parent(kind: Kind) -> object:
    """Forked while other threads start and end runs all the time, and so hold every lock there is now and then."""
    backend = kind.make()
    outcome(kind, backend, Say("warm"))
    is_over = threading.Event()
    wrong: list[str] = []

    def keep_busy() -> None:
        while not is_over.is_set():
            seen = outcome(kind, backend, Say("busy"))
            if seen != "busy":
                wrong.append(seen)

    threads = [threading.Thread(target=keep_busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    children = {in_fork(lambda: outcome(kind, backend, Say("child")), leave=lambda: os._exit(0)) for _ in range(8)}
    is_over.set()
    for thread in threads:
        thread.join()
    return [sorted(children), wrong]


def create_use_and_close(kind: Kind) -> object:
    """What is left of backends, beyond what the first two of them made for all: one compiles, one finds it compiled."""
    left: list[tuple[int, int]] = []
    for _ in range(5):
        backend = kind.make()
        seen = [outcome(kind, backend, *steps) for steps in ((Say("x"),), (Flood(1),), (Sleep(0.1), Exit(3)))]
        asyncio.run(backend.aclose())
        left.append(_count_leftovers(left[1:]))
    return {"left": left[1:], "seen": seen}


def _count_leftovers(so_far: list[tuple[int, int]]) -> tuple[int, int]:
    """Counts processes and descriptors, after waiting for the counts to come down to the first ones."""

    def count() -> tuple[int, int]:
        return len(descendants()), descriptors()

    def is_down() -> bool:
        return bool(so_far) and all(now <= most for now, most in zip(count(), so_far[0], strict=True))

    eventually(is_down, 30 if so_far else 1)
    return count()


def no_descriptors_left(kind: Kind) -> object:
    """One run for each number of descriptors that are still free, from none on: of a warm backend, then of new ones."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    loop = asyncio.new_event_loop()
    backend = kind.make(**kind.frugal)
    request = kind.request(Say("ran"), timeout=60)
    seen = [
        _run_with_free_descriptors(loop, backend, request, 100),
        _run_with_free_descriptors(loop, backend, request, 100),
    ]
    before = len(descendants()), descriptors()
    seen += [_run_with_free_descriptors(loop, backend, request, free) for free in range(48)]
    warm = _count_leftovers([before])
    loop.run_until_complete(backend.aclose())
    for _ in range(2):
        fresh = kind.make(**kind.frugal)
        seen.append(_run_with_free_descriptors(loop, fresh, request, 100))
        loop.run_until_complete(fresh.aclose())
    before_any = _count_leftovers([before])
    for free in range(0, 64, 4):
        fresh = kind.make(**kind.frugal)
        seen += [
            _run_with_free_descriptors(loop, fresh, request, free),
            _run_with_free_descriptors(loop, fresh, request, 100),
        ]
        loop.run_until_complete(fresh.aclose())
    after_all = _count_leftovers([before_any])
    return {"seen": seen, "before": before, "warm": warm, "before any": before_any, "after all": after_all}


def _run_with_free_descriptors(
    loop: asyncio.AbstractEventLoop, backend: Any, request: ExecRequest, free: int
) -> tuple[str, str, bool]:
    """Runs with only so many free descriptors; returns the end, whose fault it was, and whether to retry."""
    held = _all_but(free)
    try:
        return loop.run_until_complete(backend.execute(request)).stdout, "", True
    except SandboxError as error:
        return type(error).__name__, error.fault, error.retryable
    except BaseException as error:
        return repr(error), "not typed", False
    finally:
        for descriptor in held:
            os.close(descriptor)


def _all_but(free: int) -> list[int]:
    held: list[int] = []
    with suppress(OSError):
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    for _ in range(free):
        os.close(held.pop())
    return held


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](BACKENDS[sys.argv[2]])), flush=True)
