"""What is under way, from events."""

from __future__ import annotations

from warmcell import ExecRequest, ExecResult
from warmcell.core import events
from warmcell.core.run_record import RunRecord
from warmcell.observe.activity import Activity


def test_a_run_is_under_way_until_it_has_ended() -> None:
    with Activity() as activity:
        with RunRecord("process", ExecRequest("python", "1", 60)) as record:
            (run,) = activity.runs()
            assert (run.backend, run.language) == ("process", "python")
            assert 0 <= run.seconds < 60
            record.result = ExecResult()
        assert activity.runs() == []


def test_states() -> None:
    with Activity() as activity:
        asked = {"backend": "process", "language": "c"}
        events.emit("run.asked", "r1", asked)
        assert [run.state for run in activity.runs()] == ["waiting"]
        events.emit("run.started", "r1", asked)
        events.emit("run.started", "of before", asked)
        assert [run.state for run in activity.runs()] == ["running"]
    assert events.listeners == ()
