"""Events and denials of a live cage: refusals are in results, and everything that happens is an event."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.helpers import until

from warmcell import Sandbox, errors
from warmcell.core import events
from warmcell.core.events import Event
from warmcell.observe.metrics import Metrics

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]

#: An address for documentation; there is no way to it, or to any other.
CONNECT = """
import socket
try:
    socket.create_connection(("192.0.2.1", 80), 5)
except OSError:
    print("refused")
"""


def test_refusals_are_those_of_a_plain_run_and_of_who_met_them() -> None:
    with Sandbox() as plain:
        expected = plain.run(CONNECT).denials
    assert [(denial.kind, denial.what) for denial in expected] == [("network", "192.0.2.1:80")]
    with Sandbox(live=True) as sandbox:
        assert sandbox.run("print(1)").denials == []
        for _ in range(6):  # also what was told before
            assert sandbox.run(CONNECT).denials == expected
        assert sandbox.spawn(["python3", "-c", CONNECT]).wait(60).denials == expected
        time.sleep(0.2)  # longer than the same refusal is told only once
        assert sandbox.sh("echo on").denials == []
        again = "import os\nfor _ in range(20_000):\n    try: os.chroot('/')\n    except OSError: pass"
        flood = sandbox.run(again, timeout=120)
        assert [(denial.kind, denial.what) for denial in flood.denials] == [("syscall", "chroot")]


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    found: list[Event] = []
    stop = events.listen(found.append)
    yield found
    stop()


def test_cages_processes_sessions_and_cells_are_told(heard: list[Event]) -> None:
    with Metrics() as metrics:
        with Sandbox() as sandbox:
            process = sandbox.spawn("exit 3")
            process.wait(60)
            with sandbox.session("python") as session:
                session.run("1 + 1")
                session.run("1 / 0")
                with pytest.raises(errors.ExecutionTimeout):
                    session.run("while True: pass", timeout=0.2)
                assert b"warmcell_sessions 1.0" in metrics.text()
            assert b"warmcell_live_cages 1.0" in metrics.text()
        until(lambda: any(event.name == "live.gone" for event in heard))
        until(lambda: b"warmcell_live_cages 0.0" in metrics.text())  # it may hear of it a moment later
        assert b'warmcell_session_cells_total{outcome="ok"} 1.0' in metrics.text()
    told = [
        (event.name, event.subject) for event in heard if event.name.split(".")[0] in ("live", "process", "session")
    ]
    mine, its = sandbox.id, session.id
    assert [name for name, subject in told if subject == mine][:2] == ["live.made", "process.started"]
    assert sorted(name for name, subject in told if subject == mine)[2:] == ["process.ended", "process.started"]
    assert [name for name, subject in told if subject == its] == [
        "session.made", "session.cell", "session.cell", "session.cell", "session.gone",
    ]  # fmt: skip
    ended = next(event.fields for event in heard if event.name == "process.ended")
    assert (ended["pid"], ended["exit_code"], ended["denials"]) == (process.pid, 3, 0)
    outcomes = [event.fields["outcome"] for event in heard if event.name == "session.cell"]
    assert outcomes == ["ok", "failed", "timeout"]
    assert next(event.fields for event in heard if event.name == "live.gone")["reason"]
