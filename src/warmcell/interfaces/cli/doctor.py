"""`warmcell doctor`: what this host can enforce, as a table or as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Protocol

from warmcell.interfaces.cli.exits import OK
from warmcell.interfaces.cli.render import print_json
from warmcell.interfaces.cli.voice import Progress, say_error

COLUMNS = ("name", "status", "mechanism", "proof")
NOT_AVAILABLE = 1


class Row(Protocol):
    """One protection: `status` is works, weaker or missing; `remedy` is None or the exact thing to do."""

    @property
    def name(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def mechanism(self) -> str | None: ...
    @property
    def proof(self) -> str | None: ...
    @property
    def remedy(self) -> str | None: ...


def doctor(arguments: argparse.Namespace) -> int:
    """Exit status 1 when the default isolation class is not available here."""
    from warmcell.diagnosis.doctor import examine

    with Progress("attacking our own cage"):
        report = examine()
    if arguments.json:
        print_json(
            {"default_available": report.default_available, "rows": [dataclasses.asdict(row) for row in report.rows]}
        )
    else:
        print(table(report.rows))
    if report.default_available:
        return OK
    say_error("the default isolation class does not work on this host", "apply the remedies in the table above")
    return NOT_AVAILABLE


def table(rows: Sequence[Row]) -> str:
    """Aligned columns; a remedy follows its row."""
    cells = [[str(getattr(row, column) or "-") for column in COLUMNS] for row in rows]
    widths = [max(map(len, (name, *(row[i] for row in cells)))) for i, name in enumerate(COLUMNS)]
    lines = [_line([name.upper() for name in COLUMNS], widths)]
    for row, texts in zip(rows, cells, strict=True):
        lines.append(_line(texts, widths))
        if row.remedy:
            lines.append(textwrap.indent(f"remedy: {row.remedy}", "    "))
    return "\n".join(lines)


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()
