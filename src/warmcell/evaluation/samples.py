"""Samples, found by task: their places are indexed, their text stays in the file."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from warmcell.core.errors import InvalidRequest
from warmcell.evaluation.formats import find_id
from warmcell.evaluation.json_lines import Record, Source, open_lines, parse_record, read_lines, read_records
from warmcell.evaluation.tasks import Sample

#: Names of the text of a sample, the usual one first. Of these, `completion` continues the prompt of a HumanEval task.
TEXT_NAMES = ("completion", "solution", "code", "model_patch", "program", "response", "generation", "output")
LIST_NAMES = ("code_list", "completions", "solutions", "samples", "generations")


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
