"""Supervisors that a backend adds while many callers use it: the same runs, and nothing is left of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import in_a_fork, until

from warmcell import ExecRequest, ProcessBackend, SandboxPolicyBuilder, errors
from warmcell.backends import extra_supervisors
from warmcell.core import events
from warmcell.lifetime import host_program

pytestmark = pytest.mark.needs("linux", "user namespaces")
HELLO = ExecRequest("python", "print('hello')", 60)
SLOW = ExecRequest("python", "import time; time.sleep(500)", 600)


@pytest.fixture(autouse=True)
def _every_run_is_in_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "listeners", ())  # of other tests
    monkeypatch.setattr("warmcell.backends.process.backend.CROWD", 0)
    monkeypatch.setattr(extra_supervisors, "_CROWDED_RUNS", 1)
    monkeypatch.setattr(extra_supervisors, "choose_number", lambda: 1)


@pytest.fixture
def backend() -> Iterator[ProcessBackend]:
    """One whose runs go to another process."""
    with ProcessBackend() as backend:
        assert backend.execute_blocking(HELLO).stdout == "hello\n"
        until(lambda: backend.extra_supervisors._supervisors is not None, 30)
        backend._launcher.run = None  # type: ignore[method-assign,assignment]  # no run in this process
        yield backend


def _pid(backend: ProcessBackend) -> int:
    assert backend.extra_supervisors._supervisors is not None
    process = backend.extra_supervisors._supervisors._members[0]._process
    assert process is not None
    return process.pid


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_results_and_errors_are_those_of_this_process(backend: ProcessBackend) -> None:
    assert backend.execute_blocking(HELLO).stdout == "hello\n"
    assert backend.execute_blocking(ExecRequest("python", "raise SystemExit(3)", 60)).exit_code == 3
    with pytest.raises(errors.ExecutionTimeout):
        backend.execute_blocking(ExecRequest("python", "while True: pass", 1))


def test_closing_the_backend_ends_its_runs_and_processes(backend: ProcessBackend) -> None:
    pid = _pid(backend)
    backend.close()
    assert _is_gone(pid)


async def test_cancelling_ends_the_run_and_the_next_is_right(backend: ProcessBackend) -> None:
    slow = asyncio.create_task(backend.execute(SLOW))
    while not backend.extra_supervisors._users:
        await asyncio.sleep(0.01)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert not backend.extra_supervisors._users
    assert (await backend.execute(HELLO)).stdout == "hello\n"


async def test_closing_during_a_run(backend: ProcessBackend) -> None:
    slow = asyncio.create_task(backend.execute(SLOW))
    while not backend.extra_supervisors._users:
        await asyncio.sleep(0.01)
    pid = _pid(backend)
    await backend.aclose()
    with pytest.raises(errors.BackendUnavailable, match="closed during the run"):
        await slow
    assert _is_gone(pid)


async def test_one_that_dies_fails_its_runs_and_this_process_goes_on(backend: ProcessBackend) -> None:
    slow = asyncio.create_task(backend.execute(SLOW))
    while not backend.extra_supervisors._users:
        await asyncio.sleep(0.01)
    os.kill(_pid(backend), signal.SIGKILL)
    with pytest.raises(errors.BackendUnavailable, match="supervisor process died") as raised:
        await slow
    assert raised.value.fault == "host"
    del backend._launcher.run  # type: ignore[method-assign]
    assert (await backend.execute(HELLO)).stdout == "hello\n"


def test_they_end_when_they_are_idle(backend: ProcessBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = _pid(backend)
    monkeypatch.setattr(extra_supervisors, "_IDLE_SECONDS", 0.1)
    until(lambda: _is_gone(pid))
    del backend._launcher.run  # type: ignore[method-assign]
    assert backend.execute_blocking(HELLO).stdout == "hello\n"


def test_a_fork_has_none(backend: ProcessBackend) -> None:
    def run() -> str:
        del backend._launcher.run  # type: ignore[method-assign]
        assert backend.extra_supervisors._supervisors is None
        return backend.execute_blocking(HELLO).stdout

    assert in_a_fork(run) == "hello\n"
    assert backend.execute_blocking(HELLO).stdout == "hello\n"


def test_runs_that_this_process_must_see_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SandboxPolicyBuilder().allow_read(tmp_path).build()
    with ProcessBackend(policy=policy) as backend:
        assert backend._find_factory_of_runs() is None
    with ProcessBackend(audit=print) as backend:
        assert backend._find_factory_of_runs() is None
    with ProcessBackend() as backend:
        assert backend._find_factory_of_runs() is not None
        monkeypatch.setattr(events, "listeners", (print,))
        assert backend._find_factory_of_runs() is None


def test_they_are_for_large_machines_and_for_programs_that_have_one_to_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    assert extra_supervisors.choose_number() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    assert extra_supervisors.choose_number() == 0
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    monkeypatch.setattr(host_program, "_has_machine_to_itself", True)
    host_program.share_machine()
    assert extra_supervisors.choose_number() == 0
