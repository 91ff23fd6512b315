"""Verdicts as JSON lines and CSV."""

from __future__ import annotations

import io
import json

from warmcell import Case, ExecResult, ExecutionFailed, Usage, Verdict
from warmcell.judging.verdict_files import COLUMNS, write_verdicts

CASES = [Case(name="=evil()"), Case(), Case(name="never reached")]
VERDICTS = [
    Verdict("accepted", ExecResult(duration=0.5, usage=Usage(cpu_time=0.25, peak_memory_bytes=7))),
    Verdict("host_error", None, ExecutionFailed("a bad moment")),
]


def test_lines_have_every_column() -> None:
    file = io.StringIO()
    write_verdicts(file, CASES, VERDICTS)
    first, second = map(json.loads, file.getvalue().splitlines())
    assert tuple(first) == COLUMNS
    assert (first["name"], first["status"], first["cpu_time"], first["exit_code"]) == ("=evil()", "accepted", 0.25, 0)
    assert (second["name"], second["fault"], second["error"]) == ("2", "host", "a bad moment")


def test_a_table_has_a_heading_and_no_formulas() -> None:
    file = io.StringIO()
    write_verdicts(file, CASES, VERDICTS, "csv")
    heading, first, second = file.getvalue().splitlines()
    assert heading == ",".join(COLUMNS)
    assert first == "'=evil(),accepted,0.5,0.25,7,0,,,"
    assert second == "2,host_error,0.0,0.0,0,,,host,a bad moment"
