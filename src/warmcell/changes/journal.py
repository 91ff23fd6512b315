"""The journal of a commit: a kill at any point leaves it undoable, and from one moment on redoable.

First the journal names every temporary file that will be made ("staging"); killed then, they are removed and the host's
directory is as before. When all are on the disk, the journal is replaced by one that says "applying": from then on the
commit happens, if need be at the next start. Each operation is one atomic rename, and can be carried out again.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Literal

from warmcell.workspace.names import Parts

_NAME = "journal.json"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Operation:
    """One step. `temporary` is beside the target, or in the nearest directory above it that exists.

    `expected` is what must be at the path: device, inode, size and time of modification; None: nothing. `staged` is the
    identity of the prepared file. `newest_ns`: no file of a directory that is deleted may have changed since.
    """

    do: Literal["put", "delete", "delete_tree", "mode", "make_directory"]
    parts: Parts
    temporary: Parts = ()
    expected: tuple[int, int, int, int] | None = None
    staged: tuple[int, int] | None = None
    mode: int = 0
    newest_ns: int = 0


@dataclass(frozen=True, slots=True)
class Journal:
    """`lower` is the host's directory, `identity` its device and inode."""

    state: Literal["staging", "applying"]
    lower: str
    identity: tuple[int, int]
    operations: tuple[Operation, ...]


def write(directory: str, journal: Journal) -> None:
    """Replaces the journal in `directory`; it is on the disk afterwards."""
    path = os.path.join(directory, _NAME)
    with open(os.open(f"{path}.new", _CREATE, 0o600), "wb") as file:
        file.write(json.dumps(asdict(journal)).encode())
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.new", path)
    sync_directory(directory)


def read(directory: str) -> Journal | None:
    """None if no commit was under way."""
    try:
        with open(os.path.join(directory, _NAME), "rb") as file:
            data = json.load(file)
    except FileNotFoundError:
        return None
    operations = tuple(_operation(item) for item in data["operations"])
    return Journal(data["state"], data["lower"], tuple(data["identity"]), operations)


def _operation(item: dict[str, object]) -> Operation:
    lists = {name: tuple(value) for name, value in item.items() if isinstance(value, list)}
    return Operation(**{**item, **lists})  # type: ignore[arg-type]


def remove(directory: str) -> None:
    os.unlink(os.path.join(directory, _NAME))
    sync_directory(directory)


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
