"""The samples of an evaluation, found by task, and the ledger of which have a verdict.

Both are in a temporary database that need not fit into memory; the text of the samples stays in their file.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from warmcell.core.errors import InvalidRequest
from warmcell.evaluation.formats import find_id
from warmcell.evaluation.json_lines import Record, Source, open_lines, parse_record, read_lines, read_records
from warmcell.evaluation.tasks import Sample
from warmcell.judging.verdicts import NOT_JUDGED

#: Names of the text of a sample, the usual one first. Of these, `completion` continues the prompt of a HumanEval task.
TEXT_NAMES = ("completion", "solution", "code", "model_patch", "program", "response", "generation", "output")
LIST_NAMES = ("code_list", "completions", "solutions", "samples", "generations")
_TABLES = """
CREATE TABLE task (id TEXT PRIMARY KEY, samples INT) WITHOUT ROWID;
CREATE TABLE verdict (task TEXT, number INT, status TEXT, digest TEXT, PRIMARY KEY (task, number)) WITHOUT ROWID;
"""


class SampleIndex:
    """The samples of an evaluation. `place` rows are in the evaluation's database; records are read when needed."""

    def __init__(self, source: Source, database: sqlite3.Connection) -> None:
        self._database = database
        self._name = os.fspath(source) if isinstance(source, str | os.PathLike) else "samples"
        self._file = self._open(source)
        database.execute(
            "CREATE TABLE sample (task TEXT, number INT, offset INT, part INT, PRIMARY KEY (task, number))"
        )
        self._fill()

    def _open(self, source: Source) -> IO[bytes]:
        """A file that can be read from any place: the source itself, or a temporary copy."""
        if isinstance(source, str | os.PathLike) and not self._name.endswith(".gz"):
            file = open_lines(self._name, "samples")
            if file.seekable():
                return file
            file.close()
            raise InvalidRequest(f"{self._name}: not a regular file", field="samples", hint="write it to a file first")
        spool = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        for _, record in read_records(source, "samples"):
            spool.write(json.dumps(record).encode() + b"\n")
        spool.seek(0)
        return spool

    def _fill(self) -> None:
        numbers = _Numbers(self._database)
        for place, line, offset in read_lines(self._file, self._name, "samples"):
            record = parse_record(line, place, "samples")
            task = find_id(record, place, "samples")
            for part in range(len(_texts(record, place))):
                row = (task, numbers.take(task), offset, part)
                self._database.execute("INSERT INTO sample VALUES (?, ?, ?, ?)", row)

    def of_task(self, task: str) -> Iterator[tuple[int, Sample]]:
        """The samples of a task and their numbers, from 0, in the order of the file."""
        query = "SELECT number, offset, part FROM sample WHERE task = ? ORDER BY number"
        texts, known = list[Sample](), -1
        for number, offset, part in self._database.execute(query, (task,)).fetchall():
            if offset != known:  # a record may hold thousands of samples: it is parsed once, not for each
                self._file.seek(offset)
                record = parse_record(self._file.readline(), self._name, "samples")
                texts, known = _texts(record, self._name), offset
            yield number, texts[part]

    def count(self) -> int:
        return int(self._database.execute("SELECT COUNT(*) FROM sample").fetchone()[0])

    def close(self) -> None:
        self._file.close()


class _Numbers:
    """The next number of each task. The samples of a task are usually together, so the last few are remembered."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._next: dict[str, int] = {}

    def take(self, task: str) -> int:
        if task not in self._next:
            if len(self._next) >= 10_000:
                self._next.clear()
            query = "SELECT COUNT(*) FROM sample WHERE task = ?"
            self._next[task] = self._database.execute(query, (task,)).fetchone()[0]
        self._next[task] += 1
        return self._next[task] - 1


def _texts(record: Record, place: str) -> list[Sample]:
    for name in LIST_NAMES:
        if isinstance(record.get(name), list):
            return [_sample(text, name, place) for text in record[name]]
    for name in TEXT_NAMES:
        if name in record:
            return [_sample(record[name], name, place)]
    hint = f"one of {', '.join(TEXT_NAMES)}; or a list of texts as {LIST_NAMES[0]}"
    raise InvalidRequest(f"{place}: no field {TEXT_NAMES[0]!r}", field="samples", hint=hint)


def _sample(text: Any, name: str, place: str) -> Sample:
    if text is None:  # SWE-bench predictions have null where a model gave no patch
        text = ""
    if not isinstance(text, str):
        raise InvalidRequest(f"{place}: {name} must be text, not {type(text).__name__}", field="samples")
    return Sample(text, is_continuation=name in ("completion", "completions"))


class Ledger:
    """Used by one thread at a time, which need not always be the same."""

    def __init__(self) -> None:
        # Without a name SQLite keeps a database in a file of its own, deleted when it is closed.
        self.database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
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
            raise InvalidRequest(message, field="out", hint="write to another file") from None

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
            message = f"the verdict on sample {number} of task {task!r} belongs to another program or other tests"
            raise InvalidRequest(message, field="out", hint="tasks or samples have changed: write to another file")
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
