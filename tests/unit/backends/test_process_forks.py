"""Forks of the host program: the copy owns nothing of the original's, and works like a new program."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.helpers import fork_child, in_a_fork, share_no_zygotes, until

from warmcell import ExecRequest, ProcessBackend, run
from warmcell.backends import shared
from warmcell.pool.shared_zygotes import shared_zygotes

pytestmark = [
    pytest.mark.needs("linux"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]
SMALL = ExecRequest("python", "print(6*7)", 30)


@pytest.fixture
def backend() -> Iterator[ProcessBackend]:
    with ProcessBackend() as made:
        made.execute_blocking(SMALL)
        until(lambda: made.ready_cells)
        yield made


@contextmanager
def held(lock: Any) -> Iterator[None]:
    """Another thread holds it, as one that works in there would."""
    is_held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            may_go.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    try:
        yield
    finally:
        may_go.set()
        holder.join()


@contextmanager
def under_way(backend: ProcessBackend, request: ExecRequest) -> Iterator[list[object]]:
    """A run in another thread; its outcome is in the list when this is left."""
    outcome: list[object] = []

    def call() -> None:
        try:
            outcome.append(backend.execute_blocking(request).stdout)
        except Exception as error:
            outcome.append(error)

    caller = threading.Thread(target=call)
    before = backend._launcher.pool._leased
    caller.start()
    until(lambda: backend._launcher.pool._leased > before)
    time.sleep(0.2)
    yield outcome
    caller.join()


def use(backend: ProcessBackend) -> list[object]:
    blocking = backend.execute_blocking(SMALL).stdout
    awaited = asyncio.run(backend.execute(SMALL)).stdout
    return [blocking, awaited, len(backend.zygote_pids)]


@pytest.mark.parametrize("ends", ["at once", "sys.exit"])
def test_a_fork_works_and_its_end_does_no_harm(backend: ProcessBackend, ends: str) -> None:
    zygotes = backend.zygote_pids
    slow = ExecRequest("python", "import time; time.sleep(1.5); print('slow')", 30)
    with under_way(backend, slow) as outcome:
        assert in_a_fork(lambda: use(backend), ends=ends) == ["42\n", "42\n", 1]
    assert outcome == ["slow\n"]
    assert backend.zygote_pids == zygotes
    assert backend.execute_blocking(SMALL).stdout == "42\n"


def test_closing_in_a_fork_closes_the_forks(backend: ProcessBackend) -> None:
    zygotes, ready = backend.zygote_pids, backend.ready_cells

    def use_and_close() -> list[object]:
        used = use(backend)
        backend.close()
        return [*used, backend.zygote_pids]

    assert in_a_fork(use_and_close, ends="sys.exit") == ["42\n", "42\n", 1, []]
    assert backend.zygote_pids == zygotes and backend.ready_cells >= ready
    assert backend.execute_blocking(SMALL).stdout == "42\n"


def test_a_fork_has_no_descriptors_of_runs_or_cells(backend: ProcessBackend) -> None:
    def open_now() -> set[str]:
        return {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _exists(name)}

    slow = ExecRequest("python", "import time; time.sleep(1)", 30)
    with under_way(backend, slow):
        before = {what for what in open_now() if what.startswith(("pipe:", "socket:"))}
        in_the_fork = in_a_fork(lambda: sorted(open_now()))
    backend.close()
    of_the_backend = before - open_now()
    assert len(of_the_backend) > 8 and not of_the_backend & set(in_the_fork)  # type: ignore[call-overload]


def _exists(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def test_a_fork_that_lives_on_does_not_keep_a_guests_input_open(backend: ProcessBackend) -> None:
    """A copy of our end of the pipe would, and the guest would wait for ever."""
    reader, writer = os.pipe()
    child = 0
    try:
        told: list[str] = []
        code = "import sys; print(len(sys.stdin.read()))"
        caller = threading.Thread(
            target=lambda: told.append(backend.execute_blocking(ExecRequest("python", code, 20), stdin=reader).stdout)
        )
        caller.start()
        until(lambda: backend._launcher.pool._leased)
        time.sleep(0.3)
        child = fork_child(lambda: (os.close(writer), time.sleep(60)))
        os.write(writer, b"abc")
        os.close(writer)
        writer = -1
        caller.join(15)
        assert told == ["3\n"]
    finally:
        if child:
            os.kill(child, 9)
            os.waitpid(child, 0)
        os.close(reader)
        if writer >= 0:
            os.close(writer)


@pytest.mark.parametrize(
    "lock_of",
    [
        lambda backend: backend._launcher.pool.changed,
        lambda backend: backend._runs._changed,
        lambda backend: backend._runs._queue._lock,
        lambda backend: backend._launcher._templates._lock,
        lambda backend: backend._launcher.egress._lock,
        lambda backend: shared_zygotes._lock,
        lambda backend: next(iter(backend._launcher.pool._zygotes.values()))._lock,
        lambda backend: next(iter(backend._launcher.pool._zygotes.values()))._members[0].zygote._lock,
    ],
    ids=["pool", "runs", "queue", "templates", "egress", "shared zygotes", "share", "zygote"],
)
def test_no_lock_that_is_held_while_forking_is_held_in_the_fork(
    backend: ProcessBackend, lock_of: Callable[[ProcessBackend], Any]
) -> None:
    with held(lock_of(backend)):
        assert in_a_fork(lambda: use(backend), seconds=40) == ["42\n", "42\n", 1]


def test_run_works_in_a_fork_made_while_its_lock_was_held() -> None:
    assert run("print(1)").stdout == "1\n"
    with held(shared._lock):
        assert in_a_fork(lambda: run("print(2)").stdout, seconds=40) == "2\n"


def test_a_fork_made_while_a_zygote_starts_starts_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from warmcell.pool.zygote import ZygoteProcess

    share_no_zygotes(monkeypatch)
    prepare, entered, may_go = ZygoteProcess._prepare, threading.Event(), threading.Event()

    def slowly(self: ZygoteProcess, cancelled: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            may_go.wait(20)
        prepare(self, cancelled)

    monkeypatch.setattr(ZygoteProcess, "_prepare", slowly)
    with ProcessBackend() as backend:
        caller = threading.Thread(target=backend.execute_blocking, args=(SMALL,))
        caller.start()
        entered.wait()
        assert in_a_fork(lambda: backend.execute_blocking(SMALL).stdout, seconds=40) == "42\n"
        may_go.set()
        caller.join()
        assert backend.execute_blocking(SMALL).stdout == "42\n"
