"""Ctrl-C at the worst moments: nothing is left open, and the next run works."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import PATIENCE, eventually, is_process_named, naming, until

from warmcell import BackendUnavailable, ExecRequest, ProcessBackend, ProcessConfig
from warmcell.lifetime import descriptors
from warmcell.lifetime.run import Run
from warmcell.lifetime.runs import Interrupts

HELLO = ExecRequest("python", "print(42)", 60)
pytestmark = [pytest.mark.needs("linux", "user namespaces")]


@pytest.fixture
def backend() -> Iterator[ProcessBackend]:
    with ProcessBackend(ProcessConfig(pool_size=0, pool_min=0)) as made:
        assert made.execute_blocking(HELLO).stdout == "42\n"
        yield made


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def interrupting(call: Callable[..., Any], at: int) -> Callable[..., Any]:
    """The same, with Ctrl-C at its `at`-th return, before the caller has what it returns."""
    calls = 0

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        result = call(*args, **kwargs)
        if calls == at:
            signal.raise_signal(signal.SIGINT)
        return result

    return interrupted


@pytest.mark.parametrize(("name", "at"), [("pipe2", 1), ("pipe2", 3), ("eventfd", 1), ("close", 1), ("close", 4)])
@pytest.mark.parametrize("keeps_lock", [False, True])
def test_between_opening_and_owning(
    backend: ProcessBackend, monkeypatch: pytest.MonkeyPatch, name: str, at: int, keeps_lock: bool
) -> None:
    """Also where short calls keep the interpreter lock, as they do once there were several runs at a time."""
    before = open_descriptors()
    descriptors.keep_interpreter_lock()
    library = SimpleNamespace(**{call: getattr(descriptors._libc, call) for call in ("close", "pipe2", "socketpair")})
    with monkeypatch.context() as patched:
        patched.setattr(descriptors, "_libc", library if keeps_lock else None)
        target = library if keeps_lock and hasattr(library, name) else os
        patched.setattr(target, name, interrupting(getattr(target, name), at))
        with pytest.raises(KeyboardInterrupt):
            backend.execute_blocking(HELLO)
    assert open_descriptors() == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert backend.execute_blocking(HELLO).stdout == "42\n"


def interrupt_when(condition: Callable[[], object]) -> threading.Thread:
    """Presses Ctrl-C, once. Start it where KeyboardInterrupt is expected: elsewhere it would end pytest."""

    def press() -> None:
        eventually(condition)
        os.kill(os.getpid(), signal.SIGINT)

    return threading.Thread(target=press)


def test_a_guest_that_runs_is_ended(backend: ProcessBackend) -> None:
    before, started = open_descriptors(), time.monotonic()
    name = f"runs-{os.getpid()}"
    interrupt = interrupt_when(lambda: is_process_named(name))
    with pytest.raises(KeyboardInterrupt):
        interrupt.start()
        backend.execute_blocking(ExecRequest("python", naming(name) + "import time; time.sleep(300)", 300))
    interrupt.join()
    assert time.monotonic() - started < PATIENCE
    assert open_descriptors() == before


def test_who_waits_in_the_queue_is_let_go() -> None:
    config = ProcessConfig(pool_size=0, pool_min=0, max_concurrency=1)
    with ProcessBackend(config) as backend:
        slow = ExecRequest("python", "import time; time.sleep(300)", 300)

        def until_closed() -> None:
            with pytest.raises(BackendUnavailable):
                backend.execute_blocking(slow)

        first = threading.Thread(target=until_closed)
        first.start()
        until(lambda: backend.zygote_pids)
        interrupt = interrupt_when(lambda: backend._runs._queue.waiting)
        with pytest.raises(KeyboardInterrupt):
            interrupt.start()
            backend.execute_blocking(HELLO)
        interrupt.join()
        backend.close()
        first.join()


def test_who_insists_is_heard_at_once() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), Interrupts(Run()):
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
            reached.append(1)
    assert len(reached) == 2


def test_a_handler_of_the_programs_own_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with Interrupts(Run()):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]
