"""Catalogue: an SQLite index of packs, chunks and snapshots, and the workspaces of this machine.

The objects are authoritative for snapshots: `SnapshotArchive.synchronise` updates the index from them. A connection is
opened for each operation, so that threads, forks and other programs cannot interfere.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from warmcell.core.errors import BackendUnavailable, ExecutionFailed, SandboxError, SnapshotInvalid
from warmcell.core.light import Closing
from warmcell.lifetime.own_modes import change_mode, make_directory
from warmcell.workspaces.snapshots.chunks import ChunkCodec, Pack, damage_error
from warmcell.workspaces.snapshots.objects import PACKS, Objects, Staging, missing

_PATIENCE_SECONDS = 60.0
_TABLES = """
create table if not exists packs (number integer primary key, name text unique not null);
create table if not exists chunks (
    digest blob primary key, pack integer not null, offset integer not null, length integer not null) without rowid;
create index if not exists chunks_by_pack on chunks (pack);
create table if not exists snapshots (id text primary key, document blob not null);
create table if not exists scans (source text primary key, document blob not null);
create table if not exists workspaces (id text primary key, name text unique not null, document blob not null);
"""
_KEPT_OPEN = 32


class Catalogue:
    """The database. `connect` is a context manager for one transaction."""

    def __init__(self, path: str) -> None:
        self._path = path
        # SQLite would create it by the umask. It is not opened: closing it would drop the locks of other threads.
        with suppress(OSError):
            os.mknod(path, stat.S_IFREG | 0o600)
            change_mode(path, 0o600)
        with self.connect() as database:
            database.executescript(_TABLES)

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        try:
            database = sqlite3.connect(self._path, timeout=_PATIENCE_SECONDS)
        except sqlite3.Error as error:
            raise _translate(error, self._path) from None
        try:
            database.execute("pragma synchronous = extra")  # syncs the directory too when the journal is deleted
            with database:
                yield database
        except sqlite3.Error as error:
            raise _translate(error, self._path) from None
        finally:
            database.close()


def _translate(error: sqlite3.Error, path: str) -> SandboxError:
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return ExecutionFailed(f"timed out waiting for other programs to release the catalogue {path!r}")
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
        return ExecutionFailed(
            f"cannot write to the catalogue {path!r}: the disk is full", hint="free space on the disk"
        )
    if any(os.path.exists(place) and not os.access(place, os.W_OK) for place in (path, os.path.dirname(path))):
        return not_permitted(path)
    return SnapshotInvalid(f"cannot use the catalogue {path!r}: {error}", hint="restore the store from a backup")


def not_permitted(path: str) -> BackendUnavailable:
    hint = f"give the store to user {os.geteuid()}, writable, or use another one: `--store DIR`"
    return BackendUnavailable(f"cannot use {path!r}: permission denied, or read-only", hint=hint)


def has_chunk(database: sqlite3.Connection, digest: str) -> bool:
    return database.execute("select 1 from chunks where digest = ?", (bytes.fromhex(digest),)).fetchone() is not None


def find_chunk(database: sqlite3.Connection, digest: str) -> tuple[str, int, int] | None:
    """The pack, offset and length of a chunk."""
    query = "select name, offset, length from chunks join packs on pack = number where digest = ?"
    found: tuple[str, int, int] | None = database.execute(query, (bytes.fromhex(digest),)).fetchone()
    return found


def add_packs(database: sqlite3.Connection, packs: Iterable[Pack], *, is_preferred: bool = False) -> None:
    """Add packs to the index. A chunk in several packs is read from the first, or from these if `is_preferred`."""
    verb = "replace" if is_preferred else "ignore"
    for pack in packs:
        database.execute("insert or ignore into packs (name) values (?)", (pack.name,))
        number = database.execute("select number from packs where name = ?", (pack.name,)).fetchone()[0]
        rows = ((bytes.fromhex(digest), number, offset, length) for digest, offset, length in pack.chunks)
        database.executemany(f"insert or {verb} into chunks values (?, ?, ?, ?)", rows)


def remove_packs(database: sqlite3.Connection, names: Iterable[str]) -> None:
    """Remove packs, and all scans, which may refer to their chunks: the next snapshots read every file."""
    for name in names:
        database.execute("delete from chunks where pack = (select number from packs where name = ?)", (name,))
        database.execute("delete from packs where name = ?", (name,))
        database.execute("delete from scans")


def pack_names(database: sqlite3.Connection) -> set[str]:
    return {name for (name,) in database.execute("select name from packs")}


def snapshot_ids(database: sqlite3.Connection) -> set[str]:
    return {name for (name,) in database.execute("select id from snapshots")}


def put_snapshot(database: sqlite3.Connection, snapshot: str, document: bytes) -> None:
    database.execute("insert or replace into snapshots values (?, ?)", (snapshot, document))


def remove_snapshot(database: sqlite3.Connection, snapshot: str) -> None:
    database.execute("delete from snapshots where id = ?", (snapshot,))


def read_snapshot(database: sqlite3.Connection, snapshot: str) -> bytes | None:
    found = database.execute("select document from snapshots where id = ?", (snapshot,)).fetchone()
    return None if found is None else bytes(found[0])


def read_scan(database: sqlite3.Connection, source: str) -> bytes | None:
    found = database.execute("select document from scans where source = ?", (source,)).fetchone()
    return None if found is None else bytes(found[0])


def put_scan(database: sqlite3.Connection, source: str, document: bytes) -> None:
    database.execute("insert or replace into scans values (?, ?)", (source, document))


class ChunkReader(Closing):
    """Reads and verifies chunks for one operation. Calling it with a digest returns the data.

    Packs of a URL are copied to the staging directory once; `close` removes the copies.
    """

    def __init__(self, catalogue: Catalogue, objects: Objects, staging: Staging, codec: ChunkCodec) -> None:
        self._objects, self._codec = objects, codec
        self._connection = catalogue.connect()
        self._database = self._connection.__enter__()
        self._copies = staging.new_path()
        self._open: dict[str, int] = {}

    def __call__(self, digest: str) -> bytes:
        return self._codec.open(self.read_stored(digest), digest)

    def read_stored(self, digest: str) -> bytes:
        """The stored form of a chunk, not verified."""
        place = find_chunk(self._database, digest)
        if place is None:
            raise missing("chunk", digest)
        pack, offset, length = place
        data = os.pread(self._descriptor(pack), length, offset)
        if len(data) != length:
            raise damage_error(f"packs/{pack}", "the pack is incomplete")
        return data

    def fetch(self, pack: str) -> str:
        """The local path of a pack, or of a copy of it."""
        if not os.path.isdir(self._copies):
            make_directory(self._copies)
        return self._objects.fetch(PACKS, pack, self._copies)

    def _descriptor(self, pack: str) -> int:
        if pack not in self._open:
            if len(self._open) >= _KEPT_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            try:
                self._open[pack] = os.open(self.fetch(pack), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise missing(PACKS, pack) from None
        return self._open[pack]

    def close(self) -> None:
        self._connection.__exit__(None, None, None)
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        shutil.rmtree(self._copies, ignore_errors=True)  # missing if nothing was fetched
