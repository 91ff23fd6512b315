"""The list of a container's processes, for `top` and `stats`."""

from __future__ import annotations

import json
import os

import pytest

from warmcell.guest.live import container_request, trees

#: The fields of a `stat` file after the name: a hundred ticks of the processor, two pages of memory.
FIELDS = [b"S", b"1", *[b"0"] * 9, b"100", b"0", *[b"0"] * 8, b"2"]


def test_a_long_list_is_an_answer_that_can_be_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was cut in the middle of its JSON: of a container with hundreds of processes nothing was shown."""
    monkeypatch.setattr(container_request, "_others", lambda: set(range(2, 1002)))
    monkeypatch.setattr(container_request, "_command", lambda pid: "\ufffd" * 100)
    monkeypatch.setattr(trees, "_fields", lambda pid: FIELDS)
    answer = container_request.op_processes({}, None)
    assert len(json.dumps(answer)) < 1 << 16
    assert answer["rows"][0][1] == "2"
    assert (answer["count"], answer["memory"]) == (1000, 1000 * 2 * os.sysconf("SC_PAGE_SIZE"))
