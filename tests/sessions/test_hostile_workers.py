"""Whatever a worker sends, the host neither believes it nor waits for it: events, marks, and whole conversations."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import PATIENCE
from tests.sessions.bare import make_listeners

from warmcell import CellResult, Denial, ExecResult, errors
from warmcell.guest.live.frames import Decoder, FrameError, encode
from warmcell.lifetime.run import Run
from warmcell.runner.starvation import GuestClock
from warmcell.sessions.cell_events import Display, Done, Piece, content_of, parse
from warmcell.sessions.cell_record import CellRecord
from warmcell.sessions.cell_results import CellError, DisplayData
from warmcell.sessions.exchange import Listeners
from warmcell.sessions.interpreter import Interpreter
from warmcell.sessions.output_pipes import MarkedStream
from warmcell.sessions.session_protocol import SessionProtocol

_text = st.text(st.characters(exclude_categories=()), max_size=20)  # with halves of surrogate pairs
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=20,
)
_names = st.sampled_from(
    [
        "event",
        "mime",
        "text",
        "result",
        "id",
        "update",
        "mark",
        "ask",
        "prompt",
        "cell",
        "error",
        "cpu",
        "peak",
        "value",
        "names",
    ]
)
_kinds = st.sampled_from(["piece", "display", "clear", "input", "done", "variables", "other", ""])
_messages = st.builds(
    lambda kind, rest: {**rest, "event": kind}, _kinds | _json, st.dictionaries(_names, _json, max_size=8)
)


@given(_messages)
@settings(max_examples=100)
def test_an_event_is_sound_or_refused(message: dict[str, Any]) -> None:
    try:
        event = parse(message)
    except FrameError:
        return
    json.dumps(asdict(event), ensure_ascii=False, allow_nan=False).encode()  # nothing that cannot be shown or stored


@given(st.binary(max_size=200) | st.builds(lambda data: struct.pack("!I", len(data)) + data, st.binary(max_size=200)))
def test_bytes_that_are_no_frames_are_refused(data: bytes) -> None:
    try:
        messages = Decoder().feed(data)
    except FrameError:
        return
    assert all(isinstance(message, dict) for message in messages)


def test_sizes_depths_and_counts_are_bounded() -> None:
    with pytest.raises(FrameError):
        Decoder().feed(struct.pack("!I", (1 << 20) + 1))
    with pytest.raises(FrameError):
        Decoder().feed(struct.pack("!I", 100_000) + b"[" * 100_000)
    with pytest.raises(FrameError):
        parse({"event": "display", "mime": {str(n): "" for n in range(33)}})
    deep, wide = "{" + '"a":{' * 200 + "}" * 201, '{"a":[' + "[]," * 250_000 + "0]}"
    assert content_of("application/json", deep) == deep
    assert content_of("application/json", wide) == wide
    assert content_of("application/json", '{"a": NaN, "b": "\\ud800"}') == {"a": None, "b": "?"}
    infinite = '{"a": [1e999, -1e999, {"b": 1e400}], "c": -Infinity, "d": 1e308}'
    assert content_of("application/vnd.plotly.v1+json", infinite) == {
        "a": [None, None, {"b": None}],
        "c": None,
        "d": 1e308,
    }
    assert content_of("application/json", '{"a": 1e999}') == {"a": None}
    assert content_of("application/json", "[1]") == "[1]"
    assert content_of("application/json", '{"a": 1' + "0" * 5000 + "}") == '{"a": 1' + "0" * 5000 + "}"


def test_displays_beyond_the_bounds_are_dropped_and_said() -> None:
    record = CellRecord(1000)
    for _ in range(1500):
        record.add_display(Display({"text/plain": "x"}, False, None, False))
    result = record.result(Done(1, None), 1, 0.0)
    assert len(result.outputs) == 1000 and result.outputs_truncated


def test_short_pieces_count_by_the_memory_that_they_take() -> None:
    record = CellRecord(1000)
    record._room = 1000
    for _ in range(20):
        record.add_piece(Piece("text/html", ""))
    assert record.result(Done(1, None), 1, 0.0).outputs_truncated


@given(st.lists(st.binary(max_size=30) | st.integers(1, 4), max_size=12), st.integers(1, 7))
def test_marks_are_found_however_the_bytes_come(parts: list[bytes | int], step: int) -> None:
    """Whatever lies between: text is told whole and in order, and no mark is told as text."""
    begin = b"\0\2token:"
    written = b"".join(part if isinstance(part, bytes) else begin + b"%d\3" % part for part in parts)
    text = b"".join(part for part in parts if isinstance(part, bytes))
    stream = MarkedStream(begin)
    told = b"".join(stream.feed(written[start : start + step]) for start in range(0, len(written), step))
    for number in (1, 2, 3, 4):
        told += stream.reach(number)
        told += stream.feed(b"")
    told += stream.rest()
    if begin not in text:
        assert told == text


def test_a_mark_divides_before_from_after() -> None:
    stream = MarkedStream(b"<m:")
    assert stream.feed(b"before<m:1\3after<m:2\3end") == b"before"
    assert stream.reach(1) == b"" and stream.feed(b"") == b"after"
    assert stream.reach(2) == b"" and stream.feed(b"!<m") == b"end!"
    assert stream.rest() == b"<m"
    held = MarkedStream(b"<m:")
    assert len(held.feed(b"<m:9\3" + b"x" * (2 << 20))) == 2 << 20  # nobody asks for it: not kept for ever


# ---- conversations with somebody who is no worker ----


class Pretender:
    """A worker whose every word is the test's."""

    def __init__(self) -> None:
        self.control, self.theirs = socket.socketpair()
        self.stdout, self.writes_stdout = os.pipe()
        self.stderr, self.writes_stderr = os.pipe()
        self.is_killed = False

    def interrupt(self, *, is_repeated: bool = False) -> None: ...

    def kill(self) -> None:
        if not self.is_killed:
            self.is_killed = True
            self.theirs.shutdown(socket.SHUT_RDWR)

    def reason(self) -> str:
        return "it hung up"

    def limit_error(self, result: ExecResult) -> None: ...

    def end_if_over_memory(self, peak: int) -> bool:
        return False

    def denials_since(self, moment: float) -> list[Denial]:
        return []

    def start_clock(self) -> GuestClock:
        return GuestClock(list)

    def close(self) -> None:
        self.kill()
        for descriptor in (self.stdout, self.stderr, self.writes_stdout, self.writes_stderr):
            os.close(descriptor)
        self.control.close()
        self.theirs.close()


def _converse(says: Callable[[Pretender], None], timeout: float = 5.0, **listeners: Any) -> CellResult:
    pretender = Pretender()
    talk = SessionProtocol(pretender)
    thread = threading.Thread(target=lambda: _say(says, pretender))
    thread.start()
    try:
        return talk.run(Run(), "code", timeout, make_listeners(listeners), 1000)
    finally:
        talk.close()
        thread.join(10)
        assert not thread.is_alive()


def _say(says: Callable[[Pretender], None], pretender: Pretender) -> None:
    try:
        says(pretender)
    except OSError:
        return  # the host has hung up, which is its right


def _done(cell: int = 1, **more: Any) -> bytes:
    return encode({"event": "done", "cell": cell, "error": None, **more})


@given(
    st.lists(
        st.binary(max_size=60)
        | _messages.map(lambda m: json.dumps(m).encode()).map(lambda d: struct.pack("!I", len(d)) + d),
        max_size=6,
    )
)
@settings(max_examples=40)
def test_no_conversation_confuses_the_host(says: list[bytes]) -> None:
    def speak(pretender: Pretender) -> None:
        pretender.theirs.sendall(b"".join(says) + _done())
        pretender.theirs.shutdown(socket.SHUT_WR)

    try:
        result = _converse(speak, on_input=lambda prompt: "x")
    except errors.SessionEnded as error:
        assert error.fault == "guest"
        return
    json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False).encode()


def test_the_end_of_another_cell_is_not_this_ones() -> None:
    def speak(pretender: Pretender) -> None:
        pretender.theirs.sendall(_done(0) + _done(2) + _done(1, value="right"))

    assert _converse(speak).value == "right"


def test_silence_lasts_no_longer_than_the_cells_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmcell.sessions.exchange.GRACE_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(errors.SessionEnded, match="killed"):
        _converse(lambda pretender: None, timeout=0.2)
    assert time.monotonic() - began < PATIENCE


def test_an_interrupt_is_repeated_until_the_cell_ends() -> None:
    class HardOfHearing(Pretender):
        def interrupt(self, *, is_repeated: bool = False) -> None:
            if len(signals) == 3:  # the end of the cell is not read yet
                return
            signals.append(is_repeated)
            if len(signals) == 3:
                self.theirs.sendall(_done())

    signals: list[bool] = []
    talk = SessionProtocol(HardOfHearing())
    try:
        with pytest.raises(errors.ExecutionTimeout):
            talk.run(Run(), "code", 0.1, make_listeners({}), 1000)
    finally:
        talk.close()
    assert signals == [False, True, True]


def test_an_end_that_has_arrived_is_no_timeout() -> None:
    """A callback took longer than the time of the cell, which had ended before."""
    worker = Pretender()
    talk = SessionProtocol(worker)
    os.write(worker.writes_stdout, b"x")
    worker.theirs.sendall(_done(value="in time"))
    try:
        result = talk.run(Run(), "code", 0.1, make_listeners({"on_stdout": lambda text: time.sleep(0.2)}), 1000)
    finally:
        talk.close()
    assert (result.value, result.stdout) == ("in time", "x")


def test_slow_callbacks_do_not_delay_the_interrupt() -> None:
    """What has arrived when the time of the cell is over is handled for a second at most."""

    class Flooding(Pretender):
        def interrupt(self, *, is_repeated: bool = False) -> None:
            if not shown_until:
                shown_until.append(len(shown))
                self.theirs.sendall(_done())

    def show(display: object) -> None:
        shown.append(display)
        if not shown_until:
            time.sleep(0.2)

    shown: list[object] = []
    shown_until: list[int] = []
    worker = Flooding()
    talk = SessionProtocol(worker)
    worker.theirs.sendall(encode({"event": "display", "mime": {"text/plain": "x"}, "mark": 0}) * 60)
    try:
        with pytest.raises(errors.ExecutionTimeout):
            talk.run(Run(), "code", 0.1, make_listeners({"on_display": show}), 1000)
    finally:
        talk.close()
    assert len(shown) == 60 and shown_until[0] <= 10


def test_a_flood_of_everything_ends_with_the_cells_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmcell.sessions.exchange.GRACE_SECONDS", 0.2)
    flood = (
        encode({"event": "display", "mime": {"text/plain": "x" * 1000}, "result": False, "id": None, "mark": 0}) * 100
    )

    def speak(pretender: Pretender) -> None:
        while not pretender.is_killed:
            pretender.theirs.sendall(flood)
            os.write(pretender.writes_stdout, b"y" * 1000)

    with pytest.raises(errors.SessionEnded, match="killed") as caught:
        _converse(speak, timeout=0.3)
    assert caught.value.result is not None and len(caught.value.result.stdout) <= 1000


def test_closed_streams_do_not_spin_or_stall() -> None:
    def speak(pretender: Pretender) -> None:
        os.dup2(os.open("/dev/null", os.O_WRONLY), pretender.writes_stdout)  # the pipe has no writer any more
        time.sleep(0.2)
        pretender.theirs.sendall(_done())

    assert _converse(speak).ok


def test_hanging_up_is_the_end_and_its_reason_is_told() -> None:
    with pytest.raises(errors.SessionEnded, match="it hung up"):
        _converse(lambda pretender: pretender.theirs.shutdown(socket.SHUT_RDWR))


def test_a_guests_html_does_not_run_in_the_callers_notebook() -> None:
    script = "<script>alert(1)</script>"
    result = CellResult(
        stdout=script,
        outputs=[
            DisplayData({"text/html": script}),
            DisplayData({"image/png": '"><script>'}),
            DisplayData({"text/plain": script}),
        ],
        error=CellError("E", "m", script),
    )
    bundle = result._repr_mimebundle_()
    assert bundle["text/plain"] == f"{script}\n{script}\n{script}"
    shown = bundle["text/html"]
    assert "<script" not in shown
    assert "<iframe sandbox " in shown and "allow-scripts" not in shown


@pytest.mark.attack("S3-05")
def test_a_flood_of_questions_ends_the_session_and_not_the_host() -> None:
    """The deadline of a cell does not move with questions that were sent without waiting for an answer."""
    asked: list[str] = []

    def flood(pretender: Pretender) -> None:
        frame = encode({"event": "input", "ask": 1, "prompt": "?"})
        for _ in range(20_000):
            pretender.theirs.sendall(frame)

    with pytest.raises(errors.SessionEnded, match="too many questions"):
        _converse(flood, timeout=30, on_input=lambda prompt: asked.append(prompt) or "x")
    assert len(asked) < 10_000  # some are answered while the flood goes on


@pytest.mark.attack("S3-05")
def test_a_cell_past_its_grace_asks_the_caller_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the caller would wait for an answer to each question that has arrived, and then for the kill."""

    class Curious(Pretender):
        def interrupt(self, *, is_repeated: bool = False) -> None:
            if not is_repeated:
                self.theirs.sendall(encode({"event": "input", "ask": 1, "prompt": "?"}) * 10)

    def answer(prompt: str) -> str:
        asked.append(prompt)
        time.sleep(0.5)
        return "x"

    monkeypatch.setattr("warmcell.sessions.exchange.GRACE_SECONDS", 0.2)
    asked: list[str] = []
    talk = SessionProtocol(Curious())
    try:
        with pytest.raises(errors.SessionEnded, match="killed"):
            talk.run(Run(), "code", 0.1, make_listeners({"on_input": answer}), 1000)
    finally:
        talk.close()
    assert len(asked) <= 1


@pytest.mark.attack("S3-05")
def test_answers_that_are_not_read_are_bounded() -> None:
    """One question at a time, answered at length, and never an answer taken."""

    def ask_for_ever(pretender: Pretender) -> None:
        frame = encode({"event": "input", "ask": 1, "prompt": "?"})
        while True:
            pretender.theirs.sendall(frame)
            time.sleep(0.001)

    with pytest.raises(errors.SessionEnded, match=r"does not read|too many questions"):
        _converse(ask_for_ever, timeout=60, on_input=lambda prompt: "x" * 60_000)


@pytest.mark.attack("S3-05")
def test_a_worker_that_the_host_has_no_descriptor_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pretender = Pretender()

    def fail(*_: object) -> int:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    monkeypatch.setattr(os, "eventfd", fail)
    with pytest.raises(errors.BackendBusy, match="open files"):
        SessionProtocol(pretender)
    assert pretender.is_killed


def test_a_cancellation_holds_between_two_callbacks() -> None:
    run, shown = Run(), []

    def flood(pretender: Pretender) -> None:
        frame = encode({"event": "display", "mime": {"text/plain": "x"}, "mark": 0})
        for _ in range(20_000):
            pretender.theirs.sendall(frame)

    def cancel_at_the_third(display: object) -> None:
        shown.append(display)
        if len(shown) == 3:
            run.cancel()

    pretender = Pretender()
    talk = SessionProtocol(pretender)
    thread = threading.Thread(target=lambda: _say(flood, pretender))
    thread.start()
    try:
        with pytest.raises(errors.SessionEnded, match="was killed"):
            talk.run(run, "code", 60.0, make_listeners({"on_display": cancel_at_the_third}), 1000)
    finally:
        talk.close()
        thread.join(10)
    assert not thread.is_alive() and len(shown) >= 3


def test_an_interrupt_ends_a_callback_that_waits_and_no_answer_is_sent() -> None:
    class Obedient(Pretender):
        def interrupt(self, *, is_repeated: bool = False) -> None:
            self.theirs.sendall(_done(value="interrupted"))

    is_asked, is_cancelled = threading.Event(), threading.Event()

    def wait(prompt: object, run: Run) -> str:
        with run.on_cancel(is_cancelled.set):
            is_asked.set()
            assert is_cancelled.wait(PATIENCE)
        raise LookupError("cancelled")

    def interrupt() -> None:
        is_asked.wait(PATIENCE)
        talk.interrupts.request(is_awaited=False)

    worker = Obedient()
    talk = SessionProtocol(worker)
    worker.theirs.sendall(encode({"event": "input", "ask": 1, "prompt": "?"}))
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert talk.run(Run(), "code", PATIENCE, Listeners(on_input=wait), 1000).value == "interrupted"
        sent = Decoder().feed(worker.theirs.recv(1 << 16))
    finally:
        thread.join()
        talk.close()
    assert [message["op"] for message in sent] == ["run", "interrupt"]


@pytest.mark.parametrize("is_first_cancelled", [True, False])
def test_an_interrupt_is_for_the_first_cell_that_waits(is_first_cancelled: bool) -> None:
    """And not for the next, if the caller of the first gives up while another call is in progress."""
    interpreter = Interpreter(Pretender(), 1000)
    interrupts = interpreter._protocol.interrupts
    try:
        interrupts.begin(is_cell=False)
        with interpreter._register_cell() as first, interpreter._register_cell() as second:
            assert interpreter.interrupt() is True
            interpreter._forget(first if is_first_cancelled else second)
            interrupts.end()
            interrupts.begin(is_cell=True)
            assert interrupts.take() is not is_first_cancelled
            interrupts.end()
    finally:
        interpreter.close()


def test_an_interrupt_during_a_restart_is_for_the_first_cell_after_it() -> None:
    interpreter = Interpreter(Pretender(), 1000)

    def start() -> Pretender:
        assert interpreter.interrupt() is True
        return Pretender()

    try:
        with interpreter._register_cell():
            interpreter.run_blocking(interpreter.renewal(start))
            interrupts = interpreter._protocol.interrupts
            interrupts.begin(is_cell=True)
            assert interrupts.take() is True
            interrupts.end()
    finally:
        interpreter.close()


def test_a_restart_that_waits_starts_nothing_after_a_callback_has_closed_the_session() -> None:
    interpreter = Interpreter(Pretender(), 1000)
    started: list[Pretender] = []

    def start() -> Pretender:
        started.append(Pretender())
        return started[0]

    interpreter._mark_callbacks(lambda run: interpreter.close())(Run())
    assert interpreter.is_closed
    with pytest.raises(errors.SessionEnded, match="closed"):
        interpreter._runs.run_blocking(interpreter.renewal(start))
    assert not started
