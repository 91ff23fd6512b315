"""Frames from a guest: whatever comes, the decoder gives objects or says what is wrong, and holds no more than its cap."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.guest.live.frames import MOST_BYTES, MOST_SENT, Decoder, FrameError, FrameTooLong, encode

objects = st.dictionaries(
    st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.text(max_size=20), max_size=5
)


@given(st.lists(objects, max_size=6), st.data())
def test_whatever_the_pieces_the_messages_are_the_same(messages: list[dict[str, object]], data: st.DataObject) -> None:
    whole = b"".join(encode(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    decoder, heard = Decoder(), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        heard += decoder.feed(whole[start:end])
    assert heard == messages


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_any_bytes_give_objects_or_the_one_error(pieces: list[bytes]) -> None:
    decoder = Decoder(1000)
    try:
        for piece in pieces:
            assert all(isinstance(message, dict) for message in decoder.feed(piece))
    except FrameError:
        pass
    assert len(decoder._buffer) <= 1000 + 4 + 200 * len(pieces)


@given(st.binary(max_size=300))
def test_any_payload_of_the_right_length_gives_an_object_or_the_one_error(payload: bytes) -> None:
    try:
        (message,) = Decoder().feed(struct.pack("!I", len(payload)) + payload)
    except FrameError:
        return
    assert message == json.loads(payload)


@pytest.mark.parametrize(
    "payload",
    [b"[]", b"1", b"null", b'"x"', b"{", b"", b"\xff", b'{"a":NaN}', b'{"a":-Infinity}', b"[" * 100_000],
    ids=repr,
)
def test_what_is_no_object_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        Decoder().feed(struct.pack("!I", len(payload)) + payload)


def test_a_frame_that_is_too_long_is_refused_before_it_comes() -> None:
    with pytest.raises(FrameError, match=str(MOST_BYTES + 1)):
        Decoder().feed(struct.pack("!I", MOST_BYTES + 1))
    with pytest.raises(FrameError):
        Decoder(10).feed(struct.pack("!I", 11))
    with pytest.raises(FrameTooLong):
        encode({"a": "x" * MOST_SENT})
