"""Verdicts as JSON lines or CSV, one line for each case."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from typing import Any, Literal, TextIO

from warmcell.judging.verdicts import Case, Verdict

Format = Literal["jsonl", "csv"]
COLUMNS = ("name", "status", "time", "cpu_time", "memory_bytes", "exit_code", "signal", "fault", "error")


def verdict_row(index: int, case: Case, verdict: Verdict) -> dict[str, Any]:
    """The columns of one case. The name is its number, from 1, if it has none."""
    result, error = verdict.result, verdict.error
    return {
        "name": case.name if case.name is not None else str(index + 1),
        "status": verdict.status,
        "time": round(verdict.time, 6),
        "cpu_time": round(verdict.cpu_time, 6),
        "memory_bytes": verdict.memory_bytes,
        "exit_code": None if result is None else result.exit_code,
        "signal": None if result is None else result.signal,
        "fault": None if error is None else error.fault,
        "error": None if error is None else str(error),
    }


def write_verdicts(file: TextIO, cases: Iterable[Case], verdicts: Iterable[Verdict], format: Format = "jsonl") -> None:
    """Writes a line for each verdict; with `stop_early` there are fewer than cases. CSV has a heading."""
    rows = (verdict_row(index, *pair) for index, pair in enumerate(zip(cases, verdicts, strict=False)))
    if format == "csv":
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows({name: _as_cell(value) for name, value in row.items()} for row in rows)
        return
    for row in rows:
        file.write(json.dumps(row) + "\n")


def _as_cell(value: Any) -> Any:
    """A spreadsheet would evaluate text that begins like a formula, and names are the caller's."""
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if is_formula else value
