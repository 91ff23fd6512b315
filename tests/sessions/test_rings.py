"""What is kept of a stream: the last of it, or the first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warmcell.core.output_events import OutputEvent
from warmcell.sandbox.local.process import _join
from warmcell.sessions.processes import text_of
from warmcell.sessions.streams import Beginning, Follower, Ring


@given(st.integers(1, 50), st.lists(st.binary(max_size=30), max_size=12))
def test_a_ring_has_the_last_and_a_beginning_the_first(size: int, pieces: list[bytes]) -> None:
    ring, beginning, whole = Ring(size), Beginning(size), b"".join(pieces)
    for piece in pieces:
        ring.add(piece)
        beginning.add(piece)
    assert ring.content == whole[-size:]
    assert beginning.content == whole[:size]
    assert ring.total == beginning.total == len(whole)
    assert ring.is_truncated == beginning.is_truncated == (len(whole) > size)
    assert len(ring._kept) <= 2 * size + 30


@given(st.integers(4, 20), st.text(max_size=60))
def test_a_cut_never_splits_a_character(size: int, text: str) -> None:
    for kind in (Ring, Beginning):
        ring = kind(size)
        ring.add(text.encode("utf-8", "replace"))
        assert "\ufffd" not in text_of(ring) or "\ufffd" in text


def test_pieces_that_wait_are_joined_up_to_a_bound() -> None:
    events = [OutputEvent("stdout", b"a"), OutputEvent("stdout", b"b"), OutputEvent("stderr", b"c")]
    assert list(_join(events)) == [OutputEvent("stdout", b"ab"), OutputEvent("stderr", b"c")]
    large = OutputEvent("stdout", bytes(1 << 16))
    assert list(_join([large, events[0], events[1], large])) == [large, OutputEvent("stdout", b"ab"), large]


def test_a_follower_is_full_of_many_short_pieces_too() -> None:
    """A megabyte of single bytes took its reader seconds, in which a server answered no other request."""
    calls: list[int] = []
    follower = Follower(lambda: None, lambda: calls.append(count))
    count = 0
    for has_room, most in ((lambda: not follower.is_full, 1 << 12), (lambda: follower.has_room_for_last, 1 << 13)):
        while has_room() and count <= most:
            follower.add(OutputEvent("stdout", b"x"))
            count += 1
        assert count == most
    assert len(follower.take()[0]) == count and calls == [count]
    assert not follower.is_full
