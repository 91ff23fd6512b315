"""The usage ledger: sums, several processes on one file, a file that is locked."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.core import events
from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve import usage
from warmcell.interfaces.serve.service import LOCAL_TENANT
from warmcell.interfaces.serve.usage import UsageLedger, directory_bytes

NO_BYTES = {"egress_sent_bytes": 0, "egress_received_bytes": 0, "stored_bytes": 0}
RUN = {"duration": 2.0, "cpu_time": 0.5, "peak_memory_bytes": 1 << 29}


def test_two_ledgers_share_a_file(tmp_path: Path) -> None:
    file = str(tmp_path / "usage.db")
    one, two = UsageLedger(file), UsageLedger(file)
    with events.annotate(tenant="a", sandbox="s"):
        events.emit("run.ended", "1", RUN)
    events.emit("run.ended", "2", RUN)  # of no tenant
    expected = {"requests": 0, "runs": 2, "cpu_seconds": 1, "memory_gib_seconds": 2, "wall_seconds": 4, **NO_BYTES}
    one.close()
    assert two.rows("a") == [{"tenant": "a", "sandbox": "s", **expected}]
    assert two.rows("b") == []
    two.close()


def test_a_new_file_is_opened_by_several_at_once(tmp_path: Path) -> None:
    """SQLite refuses a change of the journal mode at once, without waiting, while another connection makes it."""
    for number in range(20):
        with ThreadPoolExecutor(8) as pool:
            for ledger in list(pool.map(UsageLedger, [str(tmp_path / f"{number}.db")] * 8)):
                ledger.close()


def test_figures_wait_for_a_locked_file(tmp_path: Path) -> None:
    ledger = UsageLedger(str(tmp_path / "usage.db"))
    ledger._database.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(tmp_path / "usage.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with events.annotate(tenant="a"):
        events.emit("session.cell", "1", {"duration": 1.0, "cpu_time": 1.0})
    with pytest.raises(sqlite3.OperationalError):
        ledger.rows("a")
    other.execute("COMMIT")
    assert [row["runs"] for row in ledger.rows("a")] == [1]
    ledger.close()
    other.close()


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database\n" * 100)
    with pytest.raises(InvalidRequest):
        UsageLedger(str(tmp_path / "text"))


def test_connections_and_processes_count_once(tmp_path: Path) -> None:
    ledger = UsageLedger(None)
    with events.annotate(tenant="a", sandbox="s"):
        events.emit("network.closed", "", {"sent": 3, "received": 40})
        events.emit("process.ended", "x", {"run": None, **RUN})
        events.emit("process.ended", "x", {"run": "1", **RUN})  # the run's own event has the same figures
    [row] = ledger.rows("a")
    assert (row["egress_sent_bytes"], row["egress_received_bytes"]) == (3, 40)
    assert (row["runs"], row["cpu_seconds"]) == (1, 0.5)
    ledger.close()


async def test_the_figures_of_many_sandboxes_are_encoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a row for each sandbox of all time: encoding all at once held up the event loop."""
    ledger = UsageLedger(None)
    for number in range(1000):
        with events.annotate(tenant="a", sandbox=f"{number:04}"):
            events.emit("request", "1", {})
    sizes, dumps = [0], json.dumps

    def record(value: Any, **options: Any) -> str:
        text = dumps(value, **options)
        sizes.append(len(text))
        return text

    monkeypatch.setattr(json, "dumps", record)
    texts = {}
    for form in ("json", "csv"):
        request: Any = SimpleNamespace(query_params={"format": form})
        texts[form] = bytes((await ledger(request, LOCAL_TENANT)).body).decode()
    ledger.close()
    assert [row["sandbox"] for row in json.loads(texts["json"])["usage"]] == [f"{number:04}" for number in range(1000)]
    assert len(texts["csv"].splitlines()) == 1001
    assert max(sizes) < 1000


def test_stored_bytes_end_with_the_sandbox_and_with_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(tmp_path / "usage.db")
    one, two = UsageLedger(file), UsageLedger(file)
    with events.annotate(tenant="a"):
        for sandbox in ("s", "t"):
            with events.annotate(sandbox=sandbox):
                events.emit("request", "1", {})
    one.set_stored({("a", "s"): 10})
    two.set_stored({("a", "t"): 20})
    assert [row["stored_bytes"] for row in two.rows("a")] == [10, 20]
    two.set_stored({})
    assert [row["stored_bytes"] for row in one.rows("a")] == [10, 0]
    monkeypatch.setattr(usage, "STORED_SECONDS", -1)  # as long after the last measurement of a killed server
    assert [row["stored_bytes"] for row in two.rows("a")] == [0, 0]
    one.close()
    two.close()


def test_a_file_of_an_earlier_version(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "usage.db")
    old.execute("CREATE TABLE usage (tenant TEXT, sandbox TEXT, requests REAL NOT NULL, PRIMARY KEY (tenant, sandbox))")
    old.execute("INSERT INTO usage VALUES ('a', '', 5)")
    old.commit()
    old.close()
    ledger = UsageLedger(str(tmp_path / "usage.db"))
    assert ledger.rows("a")[0]["requests"] == 5
    ledger.close()


def test_links_and_holes_are_not_counted(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for directory in (outside, inside):
        directory.mkdir()
    (outside / "large").write_bytes(bytes(1 << 20))
    (inside / "below").mkdir()
    (inside / "below" / "file").write_bytes(b"x" * 100_000)
    (inside / "link").symlink_to(outside)
    with open(inside / "hole", "wb") as file:
        file.truncate(1 << 30)
    assert 100_000 <= directory_bytes(str(inside)) < 200_000
    assert directory_bytes(str(tmp_path / "nothing")) == 0
