"""`warmcell top`: what runs now, in a table that refreshes on a terminal and is printed once into a pipe.

Without an address: the cages of this host's programs. With `--server`: the runs and sandboxes of a server.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from warmcell.core.lines import one_line
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import OK
from warmcell.interfaces.cli.render import print_json

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    Row = dict[str, Any]

#: By which key a table is ordered, the column for it, and whether the largest comes first.
SORTS = {"c": ("cpu", True), "m": ("memory", True), "t": ("seconds", True), "p": ("program", False)}
WIDEST = 48
_NUMBERS = ("pid", "program", "cpu", "memory", "processes", "seconds")


def top(arguments: Namespace) -> int:
    """On a terminal until `q`; into a pipe, or with `--once`, a single table."""
    every = options.seconds("--every", arguments.every)
    read = _of_server(arguments) if arguments.server else OfThisHost().read
    order = next(key for key, (column, _) in SORTS.items() if column.startswith(arguments.sort))
    if arguments.json or arguments.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _print_once(read, order, arguments.json, every)
    from warmcell.interfaces.cli.screen import refreshing

    refreshing(lambda key: _lines(read(), key), order, SORTS, every)
    return OK


def _print_once(read: Callable[[], list[Row]], order: str, as_json: bool, every: float) -> int:
    rows = read()
    if rows and "cpu" in rows[0]:
        time.sleep(min(every, 0.5))  # a share of a processor is the difference of two looks
        rows = read()
    rows = _ordered(rows, order)
    if as_json:
        print_json({"rows": rows})
    else:
        print("\n".join(table(rows)))
    return OK


class OfThisHost:
    """A row for each cage, from /proc; `cpu` is percent of one processor since the last look."""

    def __init__(self) -> None:
        self._before: dict[int, float] = {}
        self._at = 0.0

    def read(self) -> list[Row]:
        from warmcell.observe.host_cages import cages

        found, now = cages(), time.monotonic()
        passed, before = now - self._at, self._before
        self._before, self._at = {cage.pid: cage.cpu_seconds for cage in found}, now
        return [
            {
                "pid": cage.pid,
                "program": cage.program,
                "cpu": 100 * max(0.0, cage.cpu_seconds - before.get(cage.pid, cage.cpu_seconds)) / passed,
                "memory": cage.memory,
                "processes": cage.processes,
                "seconds": cage.seconds,
                "command": one_line(cage.command),
                "of": one_line(cage.program_name),
            }
            for cage in found
        ]


def _of_server(arguments: Namespace) -> Callable[[], list[Row]]:
    from warmcell.interfaces.cli.server_activity import ServerActivity

    return ServerActivity(arguments.server, arguments.token or os.environ.get("WARMCELL_TOKEN") or "").read


def _lines(rows: list[Row], order: str) -> list[str]:
    return table(_ordered(rows, order))


def _ordered(rows: list[Row], order: str) -> list[Row]:
    column, is_falling = SORTS[order]
    return sorted(rows, key=lambda row: row.get(column) or 0, reverse=is_falling)


def table(rows: list[Row]) -> list[str]:
    """A line that sums up, the names of the columns, the rows."""
    if not rows:
        return ["nothing runs"]
    names = list(rows[0])
    cells = [[_cell(name, row[name]) for name in names] for row in rows]
    widths = [max(len(text) for text in (name, *(line[i] for line in cells))) for i, name in enumerate(names)]
    shown = [[name.upper() for name in names], *cells]
    return [_summary(rows), *(_aligned(names, widths, line) for line in shown)]


def _aligned(names: list[str], widths: list[int], texts: list[str]) -> str:
    parts = (
        text.rjust(width) if name in _NUMBERS else text.ljust(width)
        for name, width, text in zip(names, widths, texts, strict=True)
    )
    return "  ".join(parts).rstrip()


def _summary(rows: list[Row]) -> str:
    if "memory" not in rows[0]:
        kinds = [str(row["kind"]) for row in rows]
        return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    programs, memory = len({row["program"] for row in rows}), sum(row["memory"] for row in rows)
    return f"{len(rows)} in cages of {programs} programs, {_cell('memory', memory)}"


def _cell(name: str, value: Any) -> str:
    if name == "cpu":
        return f"{value:.0f} %"
    if name == "memory":
        return f"{value / (1 << 20):.1f} MB"
    return _age(value) if name == "seconds" else _clipped(str(value))


def _clipped(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _age(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:.0f} h"
