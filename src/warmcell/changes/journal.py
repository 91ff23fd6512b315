"""The journal of a commit: a kill at any point leaves it undoable, and from one moment on redoable.

First the journal names every temporary file that will be made ("staging"); killed then, they are removed and the host's
directory is as before. When all are on the disk, the journal is replaced by one that says "applying": from then on the
commit happens, if need be at the next start. Each operation is one atomic rename, and can be carried out again.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from warmcell.core.errors import BackendUnavailable
from warmcell.workspace.names import Parts
from warmcell.workspace.untrusted_files import open_regular, parse_json

_NAME = "journal.json"
Do = Literal["put", "delete", "delete_tree", "mode", "make_directory"]
_DO = get_args(Do)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Operation:
    """One step. `temporary` is beside the target, or in the nearest directory above it that exists.

    `expected` is what must be at the path: device, inode, size and time of modification; None: nothing. `staged` is the
    identity of the prepared file. `newest_ns`: no file of a directory that is deleted may have changed since.
    """

    do: Do
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
    """None if no commit was under way. `BackendUnavailable` if it is not as `write` left it."""
    path = os.path.join(directory, _NAME)
    if not os.path.lexists(path):
        return None
    with open(open_regular(path, "journal"), "rb") as file:
        content = file.read()
    try:
        return _journal(parse_json(content))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackendUnavailable(
            f"the journal of a commit, {path}, was damaged: {error}",
            hint="check the directory that it names, and remove the journal",
        ) from None


def _journal(data: dict[str, Any]) -> Journal:
    if data["state"] not in ("staging", "applying") or not isinstance(data["lower"], str):
        raise ValueError("unknown state or directory")
    operations = tuple(_operation(item) for item in data["operations"])
    return Journal(data["state"], data["lower"], tuple(data["identity"]), operations)


def _operation(item: dict[str, object]) -> Operation:
    lists = {name: tuple(value) for name, value in item.items() if isinstance(value, list)}
    operation = Operation(**{**item, **lists})  # type: ignore[arg-type]
    paths = (operation.parts, operation.temporary)
    has_paths = all(isinstance(parts, tuple) and set(map(type, parts)) <= {str} for parts in paths)
    if operation.do not in _DO or not has_paths:
        raise ValueError(f"unknown operation {str(operation.do)[:100]!r}")
    return operation


def remove(directory: str) -> None:
    os.unlink(os.path.join(directory, _NAME))
    sync_directory(directory)


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
