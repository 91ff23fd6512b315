"""SnapshotArchive: a store of snapshots of directories, each with a small document of the caller.

    packs/NAME          chunks (`chunks.py`)
    snapshots/ID        one record each: the document, and the pieces of the top directory; ID is its digest
    catalogue.db        an index of both (`catalogue.py`), which can be rebuilt from them
    staging/            unfinished files

Packs are written first, then the record, then the index. A program that is killed in between leaves packs that
`compact` removes, or a record that the next program indexes, but never a record without its packs. The directory itself
is locked: shared by programs that add snapshots, exclusively by `compact`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from warmcell.core.errors import ExecutionFailed, InvalidRequest, SnapshotInvalid, SnapshotNotFound
from warmcell.core.records import dataclass
from warmcell.lifetime.held_directories import wait_to_hold
from warmcell.lifetime.own_modes import make_directories
from warmcell.workspace.names import printable
from warmcell.workspace.root import Root
from warmcell.workspace.snapshot import SnapshotId, replace_content
from warmcell.workspace.untrusted_files import parse_json
from warmcell.workspace.walk import TreeLimits
from warmcell.workspaces.snapshots import catalogue as index
from warmcell.workspaces.snapshots.catalogue import Catalogue, ChunkReader, add_packs, not_permitted, remove_packs
from warmcell.workspaces.snapshots.chunks import ChunkCodec, Pack, PackWriter, damage_error, read_index
from warmcell.workspaces.snapshots.objects import PACKS, SNAPSHOTS, LocalObjects, Objects, Staging
from warmcell.workspaces.snapshots.take import LIMITS, DirectoryReader, TreeWriter, list_directory
from warmcell.workspaces.snapshots.tree import Entry, from_plain, to_plain

_PATIENCE_SECONDS = 60.0
_ID = re.compile(r"[0-9a-f]{32}")
_VERSION = 1
#: Seconds since 1970, in the year 5138: `time.localtime` accepts it on every system.
_LATEST = 1e11
#: Compaction rewrites a pack if less than this fraction of it is needed.
_NEEDED_PART = 0.6


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """`document` is the caller's. `stored_bytes` is what this snapshot added to the store."""

    id: SnapshotId
    created: float
    files: int
    total_bytes: int
    stored_bytes: int
    document: Mapping[str, Any]
    root: Entry


class SnapshotArchive:
    """Blocking, and safe to share between threads and programs. `objects` default to files below `path`."""

    def __init__(self, path: str, *, objects: Objects | None = None, key: bytes | None = None) -> None:
        self.path = os.path.abspath(path)
        make_directories(self.path)
        if os.stat(self.path).st_uid != os.geteuid():
            raise InvalidRequest(f"the store {self.path!r} belongs to another user", field="path")
        self.codec = ChunkCodec(key)
        self.catalogue = Catalogue(os.path.join(self.path, "catalogue.db"))
        self._objects = objects or LocalObjects(self.path)
        self._is_shared_with_machines = objects is not None
        self._staging = Staging(os.path.join(self.path, "staging"))
        #: Packs that were incomplete when they were read.
        self._incomplete: set[str] = set()
        self.synchronise()

    def take(
        self, directory: str, source: str | None, document: Mapping[str, Any], limits: TreeLimits = LIMITS
    ) -> SnapshotRecord:
        """Take a snapshot. `source` identifies the directory: files unchanged since its last snapshot are not read.

        None: every file is read, since programs can change a mapped file without changing its times.
        """
        self._follow_others()
        with Root(directory) as root, self.lock(is_shared=True), self.catalogue.connect() as database:
            return self._take(database, root, source, document, limits)

    def _take(
        self,
        database: sqlite3.Connection,
        root: Root,
        source: str | None,
        document: Mapping[str, Any],
        limits: TreeLimits,
    ) -> SnapshotRecord:
        with PackWriter(self._objects, self._staging) as writer:
            scan = None if source is None else index.read_scan(database, source)
            add = self._chunk_adder(database, writer)
            reader = DirectoryReader(add, scan and self.open_document(scan), keeps_scan=source is not None)
            taken = reader.read(root, limits)
            writer.finish()
        stored = sum(place.length for pack in writer.packs for place in pack.chunks)
        record: dict[str, Any] = {"version": _VERSION, "nonce": secrets.token_hex(16), "created": time.time()}
        record |= {"files": taken.files, "bytes": taken.total_bytes, "stored": stored, "skipped": taken.skipped}
        record |= {"document": dict(document), "root": to_plain(taken.root)}
        sealed = self.seal_document(json.dumps(record, separators=(",", ":")).encode("ascii"))
        identity = sealed[:32].decode()
        self._staging.put_bytes(self._objects, SNAPSHOTS, identity, sealed)
        index.add_packs(database, writer.packs)
        index.put_snapshot(database, identity, sealed)
        if source is not None:
            index.put_scan(database, source, self.seal_document(taken.scan))
        return self._open_record(identity, sealed)

    def _chunk_adder(self, database: sqlite3.Connection, writer: PackWriter) -> Callable[[bytes], str]:
        added: set[str] = set()

        def add(data: bytes) -> str:
            digest = self.codec.digest(data)
            if digest not in added and not index.has_chunk(database, digest):
                added.add(digest)
                writer.append(digest, self.codec.seal(data, digest))
            return digest

        return add

    def restore(
        self, snapshot: str, target: Root, *, is_emptied: bool = False, is_durable: bool = True
    ) -> SnapshotRecord:
        """Write the files of a snapshot into a directory, which is empty or else emptied. Every chunk is verified."""
        with self.lock(is_shared=True):  # from before the record is read: no compaction may remove its chunks
            record = self.get(snapshot)
            with self._read_chunks() as read:
                if is_emptied:
                    for digest in _find_needed(read, [record.root]):
                        read(digest)  # verifies it: a damaged snapshot must not cost the present files
                with replace_content(target) if is_emptied else nullcontext(target) as root:
                    TreeWriter(read, root).write(record.root)
        if is_durable:
            sync_file_system(target.fd)
        return record

    def get(self, snapshot: str) -> SnapshotRecord:
        """The record of a snapshot; `SnapshotNotFound` if it does not exist."""
        if isinstance(snapshot, str) and _ID.fullmatch(snapshot):
            self._follow_others()
            for attempt in range(2):
                with self.catalogue.connect() as database:
                    document = index.read_snapshot(database, snapshot)
                if document is not None:
                    return self._open_record(snapshot, document)
                if attempt == 0:
                    self.synchronise()  # another machine may have added it
        raise SnapshotNotFound(f"no snapshot {printable(str(snapshot))[:80]!r}")

    def records(self) -> list[SnapshotRecord]:
        """All records, oldest first."""
        self._follow_others()
        return self._read_records()

    def _read_records(self) -> list[SnapshotRecord]:
        with self.catalogue.connect() as database:
            found = database.execute("select id, document from snapshots").fetchall()
        return sorted((self._open_record(*row) for row in found), key=lambda record: record.created)

    def remove(self, snapshot: str) -> None:
        """Remove a snapshot. `compact` frees its space."""
        self._remove([self.get(snapshot).id])

    def identities(self) -> list[str]:
        """The ids of all snapshots, without reading their records."""
        return self._objects.names(SNAPSHOTS)

    def keep_only(self, snapshot: str) -> None:
        """Remove all other snapshots, and free their space."""
        others = [name for name in self.identities() if name != snapshot]
        self._remove(others)
        if others:
            self.compact()

    def _remove(self, identities: Iterable[str]) -> None:
        with self.lock(is_shared=True), self.catalogue.connect() as database:
            for identity in identities:
                self._objects.remove(SNAPSHOTS, identity)
                index.remove_snapshot(database, identity)

    def compact(self) -> int:
        """Remove unused chunks; returns the bytes freed. `ExecutionFailed` while another program writes."""
        with self.lock(is_shared=False):
            self._incomplete.clear()
            self._synchronise()
            self._staging.clear()
            with self._read_chunks() as read:
                tops = [record.root for record in self._read_records()]
                return compact_packs(self.catalogue, self._objects, self._staging, read, tops)

    def synchronise(self) -> None:
        """Update the index from the objects, after a kill or a change by another machine."""
        if self._differences() is not None:
            with self.lock(is_shared=True):  # not during a compaction, which removes packs
                self._synchronise()

    def _follow_others(self) -> None:
        """Synchronise if other machines use the store: they do not update this index."""
        if self._is_shared_with_machines:
            self.synchronise()

    def _synchronise(self) -> None:
        found = self._differences()
        if found is None:
            return
        new_packs, lost_packs, new_snapshots, lost_snapshots = found
        packs = self._read_indexes(new_packs)
        with self.catalogue.connect() as database:
            index.add_packs(database, packs)
            index.remove_packs(database, lost_packs)
            for name in new_snapshots:
                with suppress(SnapshotInvalid):  # removed meanwhile
                    index.put_snapshot(database, name, self._objects.read(SNAPSHOTS, name))
            for name in lost_snapshots:
                index.remove_snapshot(database, name)

    def _differences(self) -> tuple[set[str], set[str], set[str], set[str]] | None:
        """New and lost packs, new and lost snapshots. The index is read first, because it is written last."""
        with self.catalogue.connect() as database:
            known_packs, known_snapshots = index.pack_names(database), index.snapshot_ids(database)
        packs, snapshots = set(self._objects.names(PACKS)), set(self._objects.names(SNAPSHOTS))
        packs -= self._incomplete
        found = packs - known_packs, known_packs - packs, snapshots - known_snapshots, known_snapshots - snapshots
        return found if any(found) else None

    def _read_indexes(self, names: set[str]) -> list[Pack]:
        packs = []
        with self._read_chunks() as read:
            for name in names:
                try:
                    packs.append(read_index(read.fetch(name), name))
                except SnapshotInvalid:  # incomplete: being written, on a file system without atomic renames
                    self._incomplete.add(name)
        return packs

    @contextmanager
    def lock(self, *, is_shared: bool) -> Iterator[None]:
        # Locking would report a directory of another user as in use.
        if os.stat(self.path).st_uid != os.geteuid() or not os.access(self.path, os.R_OK | os.X_OK):
            raise not_permitted(self.path)
        what = f"another program is {'compacting' if is_shared else 'writing to'} the store {self.path!r}"
        with wait_to_hold(self.path, _PATIENCE_SECONDS, ExecutionFailed(what), is_shared=is_shared):
            yield

    def seal_document(self, data: bytes) -> bytes:
        digest = self.codec.digest(data)
        return digest.encode() + self.codec.seal(data, digest, is_compressed=False)

    def open_document(self, sealed: bytes) -> bytes:
        digest = sealed[:48].decode("ascii", "replace")
        return self.codec.open(sealed[48:], digest)

    def _read_chunks(self) -> ChunkReader:
        return ChunkReader(self.catalogue, self._objects, self._staging, self.codec)

    def _open_record(self, identity: str, sealed: bytes) -> SnapshotRecord:
        data = self.open_document(sealed)
        if not self.codec.digest(data).startswith(identity):
            raise damage_error(f"snapshots/{identity}", "it is the record of another snapshot")
        try:
            plain = parse_json(data)
            skipped = tuple(map(str, plain["skipped"]))
            numbers = (float(plain["created"]), int(plain["files"]), int(plain["bytes"]), int(plain["stored"]))
            document, root = dict(plain["document"]), from_plain(plain["root"])
            if not 0 <= numbers[0] < _LATEST:
                raise ValueError("not a time")
        except (ValueError, KeyError, TypeError, OverflowError):
            raise damage_error(f"snapshots/{identity}", "its record has an unknown format") from None
        return SnapshotRecord(SnapshotId(identity, skipped), *numbers, document, root)


def sync_file_system(fd: int) -> None:
    """Sync the whole file system of `fd` to the disk, or all of them where syncfs is missing."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "syncfs"):
        library.syncfs(fd)
    else:
        os.sync()


def compact_packs(
    catalogue: Catalogue, objects: Objects, staging: Staging, read: ChunkReader, tops: Iterable[Entry]
) -> int:
    """Rewrite packs without unused chunks; returns the bytes freed. The caller holds the exclusive lock.

    `tops` are the top directories of all snapshots. New packs are on disk before the index names them, and old ones are
    removed after that: a kill in between leaves only packs that the next compaction removes.
    """
    needed = _find_needed(read, tops)
    with catalogue.connect() as database:
        packs: dict[str, list[tuple[str, int]]] = {name: [] for (name,) in database.execute("select name from packs")}
        rows = database.execute("select name, digest, length from chunks join packs on pack = number")
        for name, digest, length in rows:
            packs[name].append((bytes(digest).hex(), length))
    removed, freed = [], 0
    with PackWriter(objects, staging) as writer:
        for name, chunks in packs.items():
            kept = [(digest, length) for digest, length in chunks if digest in needed]
            size, kept_size = sum(length for _, length in chunks), sum(length for _, length in kept)
            if kept_size and kept_size >= _NEEDED_PART * size:
                continue
            for digest, _ in kept:
                read(digest)  # verifies it
                writer.append(digest, read.read_stored(digest))
            removed.append(name)
            freed += size - kept_size
        writer.finish()
    with catalogue.connect() as database:
        add_packs(database, writer.packs, is_preferred=True)
        remove_packs(database, removed)
    for name in removed:
        objects.remove(PACKS, name)
    return freed


def _find_needed(read: ChunkReader, tops: Iterable[Entry]) -> set[str]:
    needed: set[str] = set()
    waiting = list(tops)
    while waiting:
        directory = waiting.pop()
        fresh = [block for block in directory.blocks if block not in needed]
        needed.update(block for block in directory.blocks if isinstance(block, str))
        if not fresh:  # all of its pieces were seen, and so was everything below it
            continue
        for entry in list_directory(read, directory):
            if entry.kind == "directory":
                waiting.append(entry)
            elif entry.kind == "file":
                needed.update(block for block in entry.blocks if isinstance(block, str))
    return needed
