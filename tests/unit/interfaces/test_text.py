"""Text that leaves through a door."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.interfaces.text import cap, scrub


@given(st.text(), st.integers(1, 50))
def test_a_cap_keeps_both_ends(text: str, limit: int) -> None:
    capped, was_cut = cap(text, limit)
    assert was_cut == (len(text) > limit)
    capped.encode()
    if was_cut:
        assert len(capped) <= limit + 60


@pytest.mark.attack("LK-11")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot open /home/a/b.txt", "cannot open <path>"),
        ("cannot open '/srv/data': denied", "cannot open '<path>': denied"),
        ("at ~/x and ~", "at <path> and <path>"),
        ("/opt/x: not found", "<path>: not found"),
        ("/tmp/x.py is the guest's", "/tmp/x.py is the guest's"),
        ("/tmp/../etc/shadow", "<path>"),
        ("/tmpx/y", "<path>"),
        ("either/or and 3/4", "either/or and 3/4"),
        ("see https://user:pw@example.com/a/b now", "see https://example.com/a/b now"),
        ("proxy at http://10.1.2.3:80/x", "proxy at http://<address>/x"),
        ("listening on 127.0.0.1:8080.", "listening on <address>."),
        ("version 1.2.3 is fine", "version 1.2.3 is fine"),
        ("C:\\Users\\a\\b", "<path>"),
    ],
)
@pytest.mark.claim("WC-LK-5")
def test_scrubbing(text: str, shown: str) -> None:
    assert scrub(text) == shown


@given(st.text())
def test_scrubbing_takes_any_text(text: str) -> None:
    scrub(text)
