"""An interrupted cell whose end comes late, and not by its own fault, does not end the session."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
from tests.helpers import until
from tests.sessions.bare import BareWorker, Cells, make_listeners, python_worker

from warmcell import errors
from warmcell.lifetime.run import Run, RunCancelled
from warmcell.sessions import exchange
from warmcell.sessions.session_protocol import SessionProtocol

pytestmark = pytest.mark.needs("linux")

_CATCHES = """import time
try: print('begun', flush=True); time.sleep(60)
except KeyboardInterrupt: print('caught', flush=True)"""
_IGNORES = "import signal; signal.signal(2, signal.SIG_IGN)\nprint('deaf', flush=True)\nwhile True: pass"


@pytest.fixture
def cells() -> Iterator[Cells]:
    cells = Cells(python_worker())
    cells("kept = 42")
    yield cells
    cells.close()


def _cancel(cells: Cells, **listeners: Any) -> None:
    """A cell that prints "begun", is cancelled then, and prints "caught"."""
    run = Run()
    first = listeners.pop("on_begun", lambda: None)
    rest = listeners.pop("on_caught", lambda: None)

    def on_stdout(text: str) -> None:
        if "begun" in text:
            run.cancel()
            first()
        if "caught" in text:
            rest()

    with pytest.raises(RunCancelled):
        cells.talk.run(run, _CATCHES, 60, make_listeners({"on_stdout": on_stdout}), 1000)


def test_a_callback_that_takes_longer_than_the_grace(cells: Cells) -> None:
    """The end of the cell has arrived meanwhile."""
    _cancel(cells, on_caught=lambda: time.sleep(2 * exchange.CANCEL_SECONDS))
    assert cells("kept").value == "42"


def _stop_for(cells: Cells, seconds: float) -> None:
    pid = cells.worker.process.pid
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()


class _Clock:
    """Of a worker that gets no processor for so many looks."""

    def __init__(self, looks: float) -> None:
        self.looks = looks

    def remaining_time(self, timeout: float) -> float:
        self.looks -= 1
        return timeout if self.looks >= 0 else 0.0


def test_a_worker_without_a_processor_gets_its_grace_later(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells.worker, "start_clock", lambda: _Clock(99))
    _cancel(cells, on_begun=lambda: _stop_for(cells, 3 * exchange.CANCEL_SECONDS))
    assert cells("kept").value == "42"


@pytest.mark.parametrize("looks", [0, 2, 10**9])
def test_the_wait_for_a_worker_is_bounded(cells: Cells, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    monkeypatch.setattr(exchange, "GRACE_SECONDS", 0.6)
    monkeypatch.setattr(exchange, "STARVED_SECONDS", 2.0)
    monkeypatch.setattr(cells.worker, "start_clock", lambda: _Clock(looks))
    with pytest.raises(errors.SessionEnded, match=r"the interrupted cell kept running for 0\.6 s and was killed"):
        cells(_IGNORES, on_stdout=lambda text: cells.talk.interrupts.request(is_awaited=False))


def test_the_last_extension_ends_with_the_longest_wait(cells: Cells) -> None:
    """Of a cell that is starved until just before it."""
    cell = exchange.Exchange(1, 30, exchange.Listeners(), 1000)
    cell.cause, cell.clock = "timeout", _Clock(1)
    cell.interrupted_at = time.monotonic() - exchange.STARVED_SECONDS + 1.0
    latest = cell.interrupted_at + exchange.STARVED_SECONDS
    exchange.InterruptSignal(cells.worker).extend(cell)
    assert cell.deadline <= latest + 0.1


class _SlowAgent(BareWorker):
    """Sends signals when told to."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sent: list[Future[None]] = []

    def interrupt(self, *, is_repeated: bool = False) -> Any:
        self.sent.append(Future())
        return self.sent[-1]

    def start_clock(self) -> Any:
        assert self.sent[0].done(), "its time began before the signal"
        return _Clock(99)


def test_the_grace_begins_with_the_signal() -> None:
    """A loaded host passes it on late."""
    worker = python_worker()
    worker.__class__ = _SlowAgent
    assert isinstance(worker, _SlowAgent)
    worker.sent = []
    cells = Cells(worker)
    cells("kept = 42")

    def send_late() -> None:
        until(lambda: worker.sent)
        time.sleep(2 * exchange.CANCEL_SECONDS)
        BareWorker.interrupt(worker)
        worker.sent[0].set_result(None)

    thread = threading.Thread(target=send_late)
    thread.start()
    _cancel(cells)
    thread.join()
    assert cells("kept").value == "42"
    cells.close()


def test_a_kill_that_the_end_of_the_cell_overtakes_has_its_reason(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell's end was sent just before its worker was killed: the next cell says why, and not "memory"."""
    worker = cells.worker

    def kill_late() -> None:
        os.kill(worker.process.pid, signal.SIGCONT)
        until(lambda: _is_readable(cells.talk))
        with suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)

    monkeypatch.setattr(worker, "kill", kill_late)
    _cancel(cells, on_begun=lambda: os.kill(worker.process.pid, signal.SIGSTOP))
    with pytest.raises(errors.SessionEnded, match=r"kept running for 0\.6 s and was killed"):
        cells("kept")


def _is_readable(talk: SessionProtocol) -> bool:
    """Whether the worker has sent something."""
    poll = select.poll()
    poll.register(talk._worker.control, select.POLLIN)
    return bool(poll.poll(0))
