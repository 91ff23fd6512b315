"""What the displays of a cell take of the host's memory is bounded in sum."""

from __future__ import annotations

import pytest

from warmcell.sessions.cell_events import Display, Done
from warmcell.sessions.cell_record import CellRecord

KIND = "application/json"


@pytest.mark.attack("S3-05")
def test_the_json_of_all_displays_is_bounded_together() -> None:
    """As objects, 32 MB of text would take 700 MB."""
    record = CellRecord(1000)
    wide = '{"a":[' + "[]," * 90_000 + "0]}"
    for _ in range(10):
        record.add_display(Display({KIND: wide}, False, None, False))
    record.add_display(Display({KIND: '{"b": [1, 2]}'}, False, None, False))
    *many, small = record.result(Done(1, None), 1, 0.0).outputs
    assert [isinstance(output.mime[KIND], dict) for output in many] == [True] * 3 + [False] * 7
    assert many[-1].mime[KIND] == wide
    assert small.mime[KIND] == {"b": [1, 2]}
