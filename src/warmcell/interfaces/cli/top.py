"""`warmcell top`: a table of what is running, refreshed on a terminal and printed once to a pipe.

Shows the cages of this host, or with `--server` the runs and sandboxes of a server.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from warmcell.core.errors import BackendUnavailable
from warmcell.core.lines import one_line
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import OK, UsageError
from warmcell.interfaces.cli.messages import are_terminals
from warmcell.interfaces.cli.render import print_json
from warmcell.interfaces.cli.store_actions import table_lines

if TYPE_CHECKING:
    from argparse import Namespace

    Row = dict[str, Any]

#: Sort keys: the column, and whether the largest value comes first.
SORTS = {"c": ("cpu", True), "m": ("memory", True), "t": ("seconds", True), "p": ("program", False)}
MAX_WIDTH = 48
_NUMBERS = ("pid", "program", "cpu", "memory", "processes", "seconds")
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_HELP = "q quits; c, m, t, p sort by processor, memory, time, program"
_MAX_BYTES = 4 << 20
_TIMEOUT = 10.0


def top(arguments: Namespace) -> int:
    """Refresh on a terminal until `q`; print one table to a pipe or with `--once`."""
    every = options.seconds("--every", arguments.every)
    if arguments.end is not None:
        _connect_to_server(arguments).end(options.text(arguments.end))
        return OK
    read = _connect_to_server(arguments).read if arguments.server else HostCages().read
    order = next(key for key, (column, _) in SORTS.items() if column.startswith(arguments.sort))
    if arguments.json or arguments.once or not are_terminals(sys.stdin, sys.stdout):
        return _print_once(read, order, arguments.json, every)
    run_screen(lambda key: table(_sort(read(), key)), order, SORTS, every)
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
    if not arguments.server:
        raise UsageError("--end needs --server", "for example --server http://127.0.0.1:8000")
    return ServerActivity(arguments.server, arguments.token or os.environ.get("WARMCELL_TOKEN") or "")


def _sort(rows: list[Row], order: str) -> list[Row]:
    column, is_descending = SORTS[order]
    return sorted(rows, key=lambda row: row.get(column) or 0, reverse=is_descending)


def table(rows: list[Row]) -> list[str]:
    """A summary line, the header and the rows."""
    if not rows:
        return ["nothing is running"]
    names = list(rows[0])
    cells = [[_cell(name, row[name]) for name in names] for row in rows]
    numbers = [names.index(name) for name in _NUMBERS if name in names]
    return [_summary(rows), *table_lines([name.upper() for name in names], *cells, numbers=numbers)]


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
    text = _age(value) if name == "seconds" else str(value)
    return text if len(text) <= MAX_WIDTH else f"{text[: MAX_WIDTH - 1]}…"


def _age(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def run_screen(lines: Callable[[str], list[str]], key: str, keys: Container[str], every: float) -> None:
    """Draw `lines(key)` until `q`, Ctrl-C or end of input. Pressing one of `keys` changes the key."""
    with _cbreak_mode():
        while True:
            _draw(lines(key))
            if select.select([0], [], [], every)[0]:
                pressed = os.read(0, 1).decode("ascii", "replace")
                if pressed in ("", "q", "Q"):
                    return
                key = pressed if pressed in keys else key


@contextmanager
def _cbreak_mode() -> Iterator[None]:
    import termios
    import tty

    before = termios.tcgetattr(0)
    handlers = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        tty.setcbreak(0)
        _write(_ENTER)
        yield
    except KeyboardInterrupt:
        return
    finally:
        with suppress(OSError, termios.error):  # the terminal is gone
            _write(_LEAVE)
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _exit(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _draw(lines: list[str]) -> None:
    columns, rows = os.get_terminal_size(1)
    fitting = [*lines[: rows - 2], "", _HELP] if rows > 3 else lines[:rows]
    drawn = f"{_REST_OF_LINE}\r\n".join(line[:columns] for line in fitting)
    _write(_HOME + drawn + _REST_OF_LINE + _REST_OF_SCREEN)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _make_opener() -> Any:
    """An opener that does not follow redirects: the token is for this server only."""
    from urllib.request import HTTPRedirectHandler, ProxyHandler, build_opener

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    return build_opener(ProxyHandler({}), NoRedirects)


class ServerActivity:
    """`read()` returns a row for each run and each sandbox, and for each node if the server has a cluster."""

    def __init__(self, url: str, token: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"--server: {url[:80]!r} is not a URL", "for example --server http://127.0.0.1:8000")
        self._url = f"{url.rstrip('/')}/v1/activity"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._opener = _make_opener()

    def read(self) -> list[dict[str, Any]]:
        body = self._send("GET", self._url, "metrics") or b""
        try:
            found = json.loads(body)
            runs = [_row("runs", run, run["language"], run["state"]) for run in found["runs"]]
            boxes = [_row("sandboxes", box, "", "open") for box in found["sandboxes"]]
            nodes = [_node_row(node) for node in found.get("nodes", ())]
        except (KeyError, TypeError, ValueError):
            raise BackendUnavailable("the response is not from a Warmcell server") from None
        if nodes:
            return nodes + runs + boxes
        return [{name: value for name, value in row.items() if name != "node"} for row in runs + boxes]

    def end(self, identity: str) -> None:
        """End a run or sandbox of any tenant."""
        from urllib.parse import quote

        for kind in ("runs", "sandboxes"):
            if self._send("DELETE", f"{self._url}/{kind}/{quote(identity, safe='')}", "operate") is not None:
                return
        hint = "'warmcell top --server URL' lists the ids; the run of an MCP client ends with its sandbox"
        raise BackendUnavailable(f"no run or sandbox has the id {identity[:40]!r}", hint=hint)

    def _send(self, method: str, url: str, scope: str) -> bytes | None:
        """The body of the response; None if the server does not find what the URL names."""
        from urllib.error import HTTPError, URLError
        from urllib.request import Request

        try:
            request = Request(url, headers=self._headers, method=method)
            with self._opener.open(request, timeout=_TIMEOUT) as answer:
                body: bytes = answer.read(_MAX_BYTES)
                return body
        except HTTPError as error:
            if error.code == 404:
                return None
            hint = f"give a token with the scope '{scope}' by --token or WARMCELL_TOKEN"
            message = f"the server returned HTTP status {error.code}"
            raise BackendUnavailable(message, hint=hint if error.code in (401, 403) else None) from None
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise BackendUnavailable(f"cannot connect to the server: {reason}", hint="start 'warmcell serve'") from None


def _row(kind: str, found: dict[str, Any], language: str, state: str) -> dict[str, Any]:
    node = found.get("node", "")
    texts = {"kind": kind, "id": found["id"], "language": language, "state": state, "node": node}
    return {**{name: one_line(str(text)) for name, text in texts.items()}, "seconds": float(found["seconds"])}


def _node_row(node: dict[str, Any]) -> dict[str, Any]:
    """A node of a cluster: its requests, or why it gets none."""
    state = node["reason"] or f"{node['running']} requests, {node['cores']} processors"
    return _row("nodes", {"id": node["id"][:8], "node": node["address"], "seconds": 0}, "", state)
