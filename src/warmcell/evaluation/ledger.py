"""The ledger of an evaluation: which samples have a verdict, in a temporary database that need not fit into memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from warmcell.core.errors import InvalidRequest
from warmcell.judging.verdicts import NOT_JUDGED

#: Without a name SQLite keeps a database in a file of its own, deleted when it is closed.
TEMPORARY = ""
_TABLES = """
CREATE TABLE task (id TEXT PRIMARY KEY, samples INT) WITHOUT ROWID;
CREATE TABLE verdict (task TEXT, number INT, status TEXT, digest TEXT, PRIMARY KEY (task, number)) WITHOUT ROWID;
"""


class Ledger:
    """Used by one thread at a time, which need not always be the same."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(TEMPORARY, check_same_thread=False, isolation_level=None)
        self.database.execute("PRAGMA journal_mode = OFF")
        self.database.execute("PRAGMA synchronous = OFF")
        self.database.executescript(_TABLES)

    def load(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Takes over the verdicts of an earlier start."""
        for row in rows:
            self.add(row["task_id"], row["sample"], row["status"], row["digest"])

    def add(self, task: str, number: int, status: str, digest: str) -> None:
        try:
            self.database.execute("INSERT INTO verdict VALUES (?, ?, ?, ?)", (task, number, status, digest))
        except sqlite3.IntegrityError:
            message = f"sample {number} of task {task!r} has two verdicts"
            raise InvalidRequest(message, field="out", hint="give another file") from None

    def add_task(self, task: str, samples: int, place: str) -> None:
        try:
            self.database.execute("INSERT INTO task VALUES (?, ?)", (task, samples))
        except sqlite3.IntegrityError:
            raise InvalidRequest(f"{place}: a second task with the id {task!r}", field="tasks") from None

    def has(self, task: str, number: int, digest: str) -> bool:
        """Whether the sample has a verdict. Raises `InvalidRequest` if that is of another task or sample."""
        query = "SELECT digest FROM verdict WHERE task = ? AND number = ?"
        found = self.database.execute(query, (task, number)).fetchone()
        if found is not None and found[0] != digest:
            message = f"the verdict on sample {number} of task {task!r} is of another program or other tests"
            raise InvalidRequest(message, field="out", hint="tasks or samples have changed: give another file")
        return found is not None

    def counts(self) -> dict[str, int]:
        query = "SELECT status, COUNT(*) FROM verdict GROUP BY status ORDER BY COUNT(*) DESC, status"
        return dict(self.database.execute(query))

    def tally(self) -> dict[tuple[int, int], int]:
        """How many tasks have so many samples with a verdict, so many of them accepted."""
        names = sorted(NOT_JUDGED)
        query = f"""
            SELECT samples, accepted, COUNT(*) FROM (
                SELECT COUNT(*) AS samples, SUM(status = 'accepted') AS accepted FROM verdict
                WHERE status NOT IN ({", ".join("?" * len(names))}) GROUP BY task
            ) GROUP BY samples, accepted"""
        return {(samples, accepted): tasks for samples, accepted, tasks in self.database.execute(query, names)}

    def forget_missing_samples(self) -> None:
        """Verdicts on samples that are no longer in the file do not count."""
        known = "SELECT 1 FROM sample WHERE sample.task = verdict.task AND sample.number = verdict.number"
        self.database.execute(f"DELETE FROM verdict WHERE NOT EXISTS ({known})")

    def forget_missing_tasks(self) -> None:
        self.database.execute("DELETE FROM verdict WHERE task NOT IN (SELECT id FROM task)")

    def one(self, query: str) -> int:
        """The number that a query finds."""
        return int(self.database.execute(query).fetchone()[0])

    def close(self) -> None:
        self.database.close()
