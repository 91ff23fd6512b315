"""What a directory holds, for comparisons; and ways to read a store from outside."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from warmcell.workspaces import WorkspaceHandle, WorkspaceStore


def directory_of(store: WorkspaceStore, workspace: WorkspaceHandle) -> Path:
    return Path(store.path, "work", workspace.id)


def look(directory: Path) -> dict[bytes, tuple[object, ...]]:
    """By path: kind, mode, time and content; and of files with several names, which are the same file."""
    found: dict[bytes, tuple[object, ...]] = {}
    first: dict[int, bytes] = {}
    for above, directories, files in os.walk(os.fsencode(directory)):
        for name in sorted([*directories, *files]):
            path = os.path.join(above, name)
            state, short = os.lstat(path), os.path.relpath(path, os.fsencode(directory))
            if stat.S_ISLNK(state.st_mode):
                found[short] = ("link", os.readlink(path))
            elif stat.S_ISDIR(state.st_mode):
                found[short] = ("directory", stat.S_IMODE(state.st_mode))
            elif state.st_size > 1 << 30:
                found[short] = ("sparse", state.st_size, _ends(path, state.st_size))
            else:
                same = first.setdefault(state.st_ino, short) if state.st_nlink > 1 else short
                found[short] = (
                    "file",
                    stat.S_IMODE(state.st_mode),
                    state.st_mtime_ns,
                    Path(os.fsdecode(path)).read_bytes(),
                    same,
                )
    return found


def _ends(path: bytes, size: int) -> bytes:
    with open(path, "rb") as file:
        begin = file.read(100)
        file.seek(size // 2 - 50)
        middle = file.read(100)
        file.seek(size - 100)
        return begin + middle + file.read()


def list_objects(store: WorkspaceStore, kind: str) -> list[Path]:
    return sorted(Path(store.path, kind).iterdir())
