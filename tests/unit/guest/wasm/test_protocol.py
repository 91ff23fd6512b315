"""The worker protocol and both ends of its socket. The supervisor's end trusts nothing."""

from __future__ import annotations

import json
import os
import socket

import pytest
import wasm.protocol as worker_protocol
import wasm.worker as worker_channel
from hypothesis import given
from hypothesis import strategies as st

from warmcell.backends.wasm import channel
from warmcell.guest.wasm import protocol

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
MESSAGES = st.dictionaries(st.text(max_size=8), JSON, max_size=4)


def test_both_sides_use_the_same_file() -> None:
    assert protocol.__file__ == worker_protocol.__file__


@given(st.lists(st.tuples(MESSAGES, st.binary(max_size=100)), max_size=4), st.integers(1, 50))
def test_frames_arrive_whole_however_they_are_cut(sent: list[tuple[dict[str, object], bytes]], piece: int) -> None:
    stream = b"".join(protocol.encode_frame(*item) for item in sent)
    decoder, received = channel.FrameDecoder(), []
    for at in range(0, len(stream), piece):
        decoder.feed(stream[at : at + piece])
        while (frame := decoder.next_frame()) is not None:
            received.append((frame.message, frame.blob))
    assert received == sent


@pytest.mark.parametrize(
    "raw",
    [
        protocol.HEADER.pack(protocol.MAX_TEXT_BYTES + 1, 0),
        protocol.HEADER.pack(2, protocol.MAX_BLOB_BYTES + 1),
        protocol.HEADER.pack(3, 0) + b"nul",
        protocol.HEADER.pack(2, 0) + b"[]",
        protocol.HEADER.pack(4, 0) + b"\xff\xff\xff\xff",
        protocol.HEADER.pack(100_000, 0) + b"[" * 100_000,
    ],
)
def test_a_malformed_frame_is_a_violation(raw: bytes) -> None:
    decoder = channel.FrameDecoder()
    decoder.feed(raw)
    with pytest.raises(protocol.ProtocolViolation):
        decoder.next_frame()


def test_descriptors_travel_to_the_worker_only() -> None:
    ours, theirs = socket.socketpair()
    supervisor, worker = channel.Channel(ours), worker_channel.Channel(theirs)
    reader, writer = os.pipe()
    try:
        supervisor.send({"op": "setup"}, b"blob", [writer], timeout=5)
        assert worker.receive() == ({"op": "setup"}, b"blob")
        (received,) = worker.take_descriptors()
        os.write(received, b"through")
        assert os.read(reader, 10) == b"through"
        os.close(received)
        before = set(os.listdir("/proc/self/fd"))
        socket.send_fds(theirs, [protocol.encode_frame({"op": "ready"})], [reader])
        assert supervisor.receive() == channel.Frame({"op": "ready"})
        assert set(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(reader)
        os.close(writer)
        ours.close()
        theirs.close()


@given(st.integers(0, 2**32 - 1), st.lists(WORDS, min_size=1, max_size=4), st.dictionaries(WORDS, WORDS), st.binary())
def test_a_run_survives_encoding(terms: int, argv: list[str], env: dict[str, str], stdin: bytes) -> None:
    sent = protocol.encode_run(terms, argv, env, stdin)
    no_text, size = protocol.HEADER.unpack_from(sent)
    blob = sent[protocol.HEADER.size :]
    assert (no_text, size) == (0, len(blob))
    assert protocol.decode_run(blob) == (terms, argv, env, stdin)


@given(
    st.sampled_from(["exit", "trap", "timeout", "fuel", "memory", "failed"]),
    st.integers(0, 255),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    st.integers(0, 2**40),
    st.floats(0, 1e6),
)
def test_an_exit_report_survives_encoding(kind: str, code: int, message: str, memory: int, cpu: float) -> None:
    report = protocol.ExitReport(kind, code, message, memory, cpu)
    decoder = channel.FrameDecoder()
    decoder.feed(protocol.encode_exit(report))
    frame = decoder.next_frame()
    assert frame is not None and frame.message == {}
    assert protocol.decode_exit(frame.blob) == report


def test_lone_surrogates_in_a_message_are_replaced() -> None:
    report = protocol.ExitReport("trap", 1, "a\ud800b")
    assert protocol.decode_exit(protocol.encode_exit(report)[protocol.HEADER.size :]).message == "a?b"


def test_a_spec_survives_encoding() -> None:
    limits = protocol.RunLimits(1.5, 64 << 20, 7, 10, 20, 30, 2.5)
    directory = protocol.GuestDirectory("/mnt/write/0", "/work", True, 1, 2)
    spec = protocol.RunSpec("key", limits, (directory,), may_fetch=True, may_exec=False)
    decoder = channel.FrameDecoder()
    decoder.feed(protocol.encode_spec(3, spec))
    frame = decoder.next_frame()
    assert frame is not None
    number, decoded = protocol.decode_spec(frame.message)
    assert (number, decoded) == (3, spec)
    assert type(decoded.limits) is protocol.RunLimits and type(decoded.directories[0]) is protocol.GuestDirectory


def test_sending_to_a_worker_that_does_not_read_times_out() -> None:
    ours, theirs = socket.socketpair()
    ours_channel = channel.Channel(ours)
    with ours, theirs, pytest.raises(channel.WorkerTimedOut):
        ours_channel.send({}, bytes(16 << 20), timeout=0.05)


def test_a_closed_end_is_a_dead_worker() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    ours_channel = channel.Channel(ours)
    with pytest.raises(channel.WorkerDied):
        ours_channel.receive()
    ours.close()
    with pytest.raises(channel.WorkerDied):
        ours_channel.send({}, timeout=1)


def test_the_header_is_part_of_the_format() -> None:
    assert (
        protocol.encode_frame({"a": 1}, b"xy")
        == b"\0\0\0\x07\0\0\0\x02" + json.dumps({"a": 1}).replace(" ", "").encode() + b"xy"
    )
