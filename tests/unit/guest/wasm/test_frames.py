"""Both ends of the control socket speak the same frames, and the supervisor's end trusts nothing."""

from __future__ import annotations

import json
import os
import socket

import pytest
import wasm.frames as worker_frames
from hypothesis import given
from hypothesis import strategies as st

from warmcell.backends.wasm import frames
from warmcell.backends.wasm.outcome import Ending, ending_from

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
MESSAGES = st.dictionaries(st.text(max_size=8), JSON, max_size=4)


@given(MESSAGES, st.binary(max_size=200))
def test_both_ends_encode_alike(message: dict[str, object], blob: bytes) -> None:
    assert frames.encode(message, blob) == worker_frames.encode(message, blob)


@given(st.lists(st.tuples(MESSAGES, st.binary(max_size=100)), max_size=4), st.integers(1, 50))
def test_frames_arrive_whole_however_they_are_cut(sent: list[tuple[dict[str, object], bytes]], piece: int) -> None:
    stream = b"".join(worker_frames.encode(*item) for item in sent)
    decoder, received = frames.Decoder(), []
    for at in range(0, len(stream), piece):
        decoder.feed(stream[at : at + piece])
        while (frame := decoder.next_frame()) is not None:
            received.append((frame.message, frame.blob))
    assert received == sent


@pytest.mark.parametrize(
    "raw",
    [
        frames.HEADER.pack(frames.MAX_TEXT_BYTES + 1, 0),
        frames.HEADER.pack(2, frames.MAX_BLOB_BYTES + 1),
        frames.HEADER.pack(3, 0) + b"nul",
        frames.HEADER.pack(2, 0) + b"[]",
        frames.HEADER.pack(4, 0) + b"\xff\xff\xff\xff",
        frames.HEADER.pack(100_000, 0) + b"[" * 100_000,
    ],
)
def test_what_no_worker_of_ours_sends_is_a_violation(raw: bytes) -> None:
    decoder = frames.Decoder()
    decoder.feed(raw)
    with pytest.raises(frames.ProtocolViolation):
        decoder.next_frame()


def test_descriptors_travel_to_the_worker_only() -> None:
    ours, theirs = socket.socketpair()
    supervisor, worker = frames.Channel(ours), worker_frames.Channel(theirs)
    reader, writer = os.pipe()
    try:
        supervisor.send({"op": "setup"}, b"blob", [writer], timeout=5)
        assert worker.receive() == ({"op": "setup"}, b"blob")
        (received,) = worker.take_descriptors()
        os.write(received, b"through")
        assert os.read(reader, 10) == b"through"
        os.close(received)
        before = set(os.listdir("/proc/self/fd"))
        socket.send_fds(theirs, [worker_frames.encode({"op": "ready"})], [reader])
        assert supervisor.receive() == frames.Frame({"op": "ready"})
        assert set(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(reader)
        os.close(writer)
        ours.close()
        theirs.close()


@given(st.integers(0, 2**32 - 1), st.lists(WORDS, min_size=1, max_size=4), st.dictionaries(WORDS, WORDS), st.binary())
def test_a_run_arrives_as_it_was_asked_for(terms: int, argv: list[str], env: dict[str, str], stdin: bytes) -> None:
    sent = frames.encode_run(terms, argv, env, stdin)
    no_text, size = frames.HEADER.unpack_from(sent)
    blob = sent[frames.HEADER.size :]
    assert (no_text, size) == (0, len(blob))
    assert worker_frames.decode_run(blob) == (terms, argv, env, stdin)


@given(
    st.sampled_from(frames.ENDINGS), st.integers(0, 255), st.integers(0, 2**40), st.floats(0, 1e6), st.text(max_size=50)
)
def test_an_ending_arrives_as_it_was_told(kind: str, code: int, memory: int, cpu: float, message: str) -> None:
    decoder = frames.Decoder()
    decoder.feed(worker_frames.encode_ending(kind, code, memory, cpu, message))
    frame = decoder.next_frame()
    assert frame is not None and frame.message == {}
    told = message.encode("utf-8", "replace").decode()
    assert ending_from(frame.blob) == Ending(kind, code, told, memory, cpu)


def test_a_worker_that_does_not_read_overstays() -> None:
    ours, theirs = socket.socketpair()
    channel = frames.Channel(ours)
    with ours, theirs, pytest.raises(frames.Overstayed):
        channel.send({}, bytes(16 << 20), timeout=0.05)


def test_a_closed_end_is_a_dead_worker() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    channel = frames.Channel(ours)
    with pytest.raises(frames.WorkerDied):
        channel.receive()
    ours.close()
    with pytest.raises(frames.WorkerDied):
        channel.send({}, timeout=1)


def test_the_header_is_part_of_the_format() -> None:
    assert (
        frames.encode({"a": 1}, b"xy")
        == b"\0\0\0\x07\0\0\0\x02" + json.dumps({"a": 1}).replace(" ", "").encode() + b"xy"
    )
