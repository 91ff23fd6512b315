"""Removes chunks that no snapshot needs. Only while no other program writes to the store.

New packs are on disk before the index names them, and old ones are removed after that: a kill in between leaves only
packs that the next compaction removes.
"""

from __future__ import annotations

from collections.abc import Iterable

from warmcell.workspaces.snapshots.catalogue import Catalogue, add_packs, remove_packs
from warmcell.workspaces.snapshots.objects import PACKS, Objects, Staging
from warmcell.workspaces.snapshots.packs import PackWriter
from warmcell.workspaces.snapshots.reading import ChunkReader
from warmcell.workspaces.snapshots.restore import list_directory
from warmcell.workspaces.snapshots.tree import Entry

#: A pack is written again if less than this part of it is needed.
_NEEDED_PART = 0.6


def compact_packs(
    catalogue: Catalogue, objects: Objects, staging: Staging, read: ChunkReader, tops: Iterable[Entry]
) -> int:
    """Returns the bytes freed. `tops` are the top directories of all snapshots."""
    needed = _find_needed(read, tops)
    with catalogue.connect() as database:
        packs: dict[str, list[tuple[str, int]]] = {name: [] for (name,) in database.execute("select name from packs")}
        rows = database.execute("select name, digest, length from chunks join packs on pack = number")
        for name, digest, length in rows:
            packs[name].append((bytes(digest).hex(), length))
    removed, freed, writer = [], 0, PackWriter(objects, staging)
    try:
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
    finally:
        writer.abandon()
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
        if not fresh:  # all of its pieces were seen: so was everything below it
            continue
        for entry in list_directory(read, directory):
            if entry.kind == "directory":
                waiting.append(entry)
            elif entry.kind == "file":
                needed.update(block for block in entry.blocks if isinstance(block, str))
    return needed
