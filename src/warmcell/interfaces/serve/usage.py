"""`GET /v1/usage`: what each tenant and each of its sandboxes has used, durable in an SQLite file."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.events import Event, listen
from warmcell.interfaces.serve.authentication import ANONYMOUS, token_required
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry, SandboxRegistry
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import query
from warmcell.lifetime.threads import in_thread
from warmcell.workspace.root import Root
from warmcell.workspace.walk import TreeLimits, walk

COLUMNS = (
    *("requests", "runs", "cpu_seconds", "memory_gib_seconds", "wall_seconds"),
    *("egress_sent_bytes", "egress_received_bytes"),
)
#: The figures are written to the file at this interval.
FLUSH_SECONDS = 2.0
#: Stored bytes that were not measured for so long are not counted: their server was killed.
STORED_SECONDS = 90.0
_KEY = ("tenant", "sandbox")
_NOTHING = (0.0,) * len(COLUMNS)
_log = logging.getLogger("warmcell.serve")
_BUSY_SECONDS = 10
#: Stored bytes are measured at most this often; and at least this often, without a request for the figures.
MIN_SECONDS, MEASURE_SECONDS = 2.0, 20.0
#: More files than this are not counted: a guest must not keep the server busy.
_LIMITS = TreeLimits(entries=200_000, seconds=60.0)


class UsageLedger:
    """Adds up the usage in events of requests, runs, processes, cells and connections, and keeps the bytes stored.

    Several processes may share one file. Listens until `close`.

    A thread writes to the file, so that the event loop never waits for the disk or for another process's lock.
    """

    def __init__(self, path: str | None) -> None:
        self._lock, self._file_lock = threading.Lock(), threading.Lock()
        self._pending: dict[tuple[str, str], list[float]] = {}
        self._stored: set[tuple[str, str]] = set()
        #: Set by each request for the figures.
        self.is_read = asyncio.Event()
        self._is_closed = threading.Event()
        try:
            self._database = self._open(path or ":memory:")
        except sqlite3.Error as error:
            raise InvalidRequest(f"cannot use {path!r} for usage figures: {error}", field="usage") from None
        self._thread = threading.Thread(target=self._write_regularly, name="warmcell-usage", daemon=True)
        self._thread.start()
        self._stop = listen(self._add_event)

    def _open(self, path: str) -> sqlite3.Connection:
        """Open the file. Retries while another process opens it: SQLite does not wait to change the journal mode."""
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                return self._open_once(path)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _open_once(self, path: str) -> sqlite3.Connection:
        database = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        figures = ", ".join(f"{name} REAL NOT NULL DEFAULT 0" for name in COLUMNS)
        database.execute(
            f"CREATE TABLE IF NOT EXISTS usage (tenant TEXT, sandbox TEXT, {figures}, PRIMARY KEY (tenant, sandbox))"
        )
        known = {row[1] for row in database.execute("PRAGMA table_info(usage)")}
        for name in COLUMNS:
            if name not in known:  # a file of an earlier version
                database.execute(f"ALTER TABLE usage ADD COLUMN {name} REAL NOT NULL DEFAULT 0")
        database.execute(
            "CREATE TABLE IF NOT EXISTS stored"
            " (tenant TEXT, sandbox TEXT, bytes REAL, measured REAL, PRIMARY KEY (tenant, sandbox))"
        )
        database.commit()
        return database

    def _add_event(self, event: Event) -> None:
        fields = event.fields
        if not fields.get("tenant") or (added := _figures(event.name, fields)) is None:
            return
        key = fields["tenant"], fields.get("sandbox") or ""
        with self._lock:
            self._add(key, added)

    def _add(self, key: tuple[str, str], added: Sequence[float]) -> None:
        self._pending[key] = [*map(sum, zip(self._pending.get(key, _NOTHING), added, strict=True))]

    def _write_regularly(self) -> None:
        while not self._is_closed.wait(FLUSH_SECONDS):
            try:
                self._write()
            except sqlite3.Error as error:  # tried again: nothing is lost while the process lives
                _log.error("cannot write usage figures: %s", error)

    def _write(self) -> None:
        names, marks = ", ".join((*_KEY, *COLUMNS)), ", ".join("?" * (len(_KEY) + len(COLUMNS)))
        sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in COLUMNS)
        statement = f"INSERT INTO usage ({names}) VALUES ({marks}) ON CONFLICT (tenant, sandbox) DO UPDATE SET {sums}"
        with self._file_lock:
            with self._lock:
                taken, self._pending = self._pending, {}
            try:
                with self._database:
                    self._database.executemany(statement, [(*key, *row) for key, row in taken.items()])
            except sqlite3.Error:
                with self._lock:
                    for key, row in taken.items():
                        self._add(key, row)
                raise

    def set_stored(self, sizes: Mapping[tuple[str, str], int]) -> None:
        """Set the bytes that the sandboxes of this process store, by tenant and sandbox."""
        now = time.time()
        with self._file_lock, self._database:
            gone = [(tenant, sandbox) for tenant, sandbox in self._stored if (tenant, sandbox) not in sizes]
            self._database.executemany("DELETE FROM stored WHERE tenant = ? AND sandbox = ?", gone)
            rows = [(*key, size, now) for key, size in sizes.items()]
            self._database.executemany("INSERT OR REPLACE INTO stored VALUES (?, ?, ?, ?)", rows)
            self._stored = set(sizes)

    def rows(self, tenant: str | None) -> list[dict[str, Any]]:
        """The rows of one tenant, or of all; `sandbox` is empty for runs without one."""
        self._write()
        names = (*_KEY, *COLUMNS, "stored_bytes")
        statement = (
            f"SELECT {', '.join((*_KEY, *COLUMNS))}, coalesce(bytes, 0) FROM usage"
            " LEFT JOIN (SELECT * FROM stored WHERE measured > ?2) USING (tenant, sandbox)"
            " WHERE ?1 IS NULL OR tenant = ?1 ORDER BY tenant, sandbox"
        )
        with self._file_lock:
            found = self._database.execute(statement, (tenant, time.time() - STORED_SECONDS)).fetchall()
        return [dict(zip(names, row, strict=True)) for row in found]

    async def __call__(self, request: Request, tenant: Tenant) -> Response:
        """What this tenant has used; all tenants for a token with the scope `metrics`. CSV with `?format=csv`."""
        if tenant is ANONYMOUS:
            raise token_required()
        shown = None if "metrics" in tenant.scopes else tenant.id
        wanted = request.query_params.get("format", "json")
        if wanted not in ("json", "csv"):
            raise InvalidRequest("must be json or csv", field="format")
        self.is_read.set()
        render = as_json if wanted == "json" else as_csv
        text = await in_thread(lambda: render(self.rows(shown)))  # there may be a row for each sandbox that ever was
        return Response(text, media_type="application/json" if wanted == "json" else "text/csv")

    def routes(self) -> list[Any]:
        wanted = query("format", {"type": "string", "enum": ["json", "csv"]})
        return [route("GET", "/v1/usage", self, None, answers=("Usages", "text/csv"), parameters=[wanted])]

    def close(self) -> None:
        self._stop()
        self._is_closed.set()
        self._thread.join()
        with suppress(sqlite3.Error):  # the server is shutting down, and what cannot be written now is lost
            self._write()
            self.set_stored({})
        self._database.close()


def as_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """Each row by itself: the encoder keeps the interpreter's lock while it works."""
    return f'{{"usage":[{",".join(map(json.dumps, rows))}]}}'


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, (*_KEY, *COLUMNS, "stored_bytes"), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _figures(name: str, fields: Mapping[str, Any]) -> tuple[float, ...] | None:
    """The figures that an event adds to each column, or None. A process that belongs to a run is counted with it."""
    if name == "request":
        return (1.0, *_NOTHING[1:])
    if name == "network.closed":
        return (*_NOTHING[:-2], float(fields["sent"]), float(fields["received"]))
    if name not in ("run.ended", "session.cell", "process.ended") or fields.get("run"):
        return None
    seconds, memory = fields.get("duration") or 0.0, fields.get("peak_memory_bytes") or 0
    return 0.0, 1.0, fields.get("cpu_time") or 0.0, memory / (1 << 30) * seconds, seconds, 0.0, 0.0


async def measure_regularly(sandboxes: SandboxRegistry, ledger: UsageLedger) -> None:
    """Measure stored bytes; also after each request for the figures, so that the next one is up to date."""
    while True:
        try:
            await measure(sandboxes.all(), ledger)
        except (sqlite3.Error, SandboxError) as error:  # tried again; no thread could be started, for example
            _log.error("cannot measure stored bytes: %s", error)
        await asyncio.sleep(MIN_SECONDS)
        ledger.is_read.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(MEASURE_SECONDS):
                await ledger.is_read.wait()


async def measure(entries: list[SandboxEntry], ledger: UsageLedger) -> None:
    """Measure these sandboxes once. All others no longer store anything."""
    found = {}
    for entry in entries:
        with suppress(SandboxError):  # it was destroyed meanwhile
            path = entry.sandbox.work_dir
            found[entry.tenant_id, entry.id] = await in_thread(lambda path=path: directory_bytes(path))  # type: ignore[misc]
    await in_thread(lambda: ledger.set_stored(found))


def directory_bytes(path: str) -> int:
    """Allocated bytes. A guest may change the tree meanwhile: links are not followed, too deep levels are skipped."""
    size = 0
    with suppress(SandboxError), closing(Root(path)) as root:  # the sandbox has ended, or has more than the limits
        for found in walk(root, limits=_LIMITS):
            size += found.state.st_blocks * 512 if found.kind != "closed" else 0
    return size
