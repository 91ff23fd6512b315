"""`warmcell top`: a table of what is running, refreshed on a terminal and printed once to a pipe.

Shows the cages of this host, or with `--server` the runs and sandboxes of a server.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from warmcell.core.lines import one_line
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import OK, UsageError
from warmcell.interfaces.cli.render import print_json

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from warmcell.interfaces.cli.server_activity import ServerActivity

    Row = dict[str, Any]

#: Sort keys: the column, and whether the largest value comes first.
SORTS = {"c": ("cpu", True), "m": ("memory", True), "t": ("seconds", True), "p": ("program", False)}
MAX_WIDTH = 48
_NUMBERS = ("pid", "program", "cpu", "memory", "processes", "seconds")


def top(arguments: Namespace) -> int:
    """Refresh on a terminal until `q`; print one table to a pipe or with `--once`."""
    every = options.seconds("--every", arguments.every)
    if arguments.end is not None:
        _connect_to_server(arguments).end(options.text(arguments.end))
        return OK
    read = _connect_to_server(arguments).read if arguments.server else HostCages().read
    order = next(key for key, (column, _) in SORTS.items() if column.startswith(arguments.sort))
    if arguments.json or arguments.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _print_once(read, order, arguments.json, every)
    from warmcell.interfaces.cli.screen import run_screen

    run_screen(lambda key: _lines(read(), key), order, SORTS, every)
    return OK


def _print_once(read: Callable[[], list[Row]], order: str, as_json: bool, every: float) -> int:
    rows = read()
    if rows and "cpu" in rows[0]:
        time.sleep(min(every, 0.5))  # CPU usage is the difference of two samples
        rows = read()
    rows = _sort(rows, order)
    if as_json:
        print_json({"rows": rows})
    else:
        print("\n".join(table(rows)))
    return OK


class HostCages:
    """A row for each cage, from /proc; `cpu` is percent of one processor since the last read."""

    def __init__(self) -> None:
        self._before: dict[int, float] = {}
        self._at = 0.0

    def read(self) -> list[Row]:
        from warmcell.observe.host_cages import find_cages

        found, now = find_cages(), time.monotonic()
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


def _connect_to_server(arguments: Namespace) -> ServerActivity:
    from warmcell.interfaces.cli.server_activity import ServerActivity

    if not arguments.server:
        raise UsageError("--end needs --server", "for example --server http://127.0.0.1:8000")
    return ServerActivity(arguments.server, arguments.token or os.environ.get("WARMCELL_TOKEN") or "")


def _lines(rows: list[Row], order: str) -> list[str]:
    return table(_sort(rows, order))


def _sort(rows: list[Row], order: str) -> list[Row]:
    column, is_descending = SORTS[order]
    return sorted(rows, key=lambda row: row.get(column) or 0, reverse=is_descending)


def table(rows: list[Row]) -> list[str]:
    """A summary line, the header and the rows."""
    if not rows:
        return ["nothing is running"]
    names = list(rows[0])
    cells = [[_cell(name, row[name]) for name in names] for row in rows]
    widths = [max(len(text) for text in (name, *(line[i] for line in cells))) for i, name in enumerate(names)]
    shown = [[name.upper() for name in names], *cells]
    return [_summary(rows), *(_align(names, widths, line) for line in shown)]


def _align(names: list[str], widths: list[int], texts: list[str]) -> str:
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
    return _age(value) if name == "seconds" else _clip(str(value))


def _clip(text: str) -> str:
    return text if len(text) <= MAX_WIDTH else f"{text[: MAX_WIDTH - 1]}…"


def _age(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:.0f} h"
