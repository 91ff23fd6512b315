"""Change, Conflict and CommitReport: the public results. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ChangeKind = Literal["added", "modified", "deleted", "renamed", "mode"]
#: "other": a FIFO, socket or device; "closed": a directory whose permissions hide its content.
Entry = Literal["file", "symlink", "directory", "other", "closed"]


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs from the directory on the host. A deleted directory is one change.

    `path` is relative; bytes that are not UTF-8 are decoded as by `os.fsdecode`. A flagged change could make the host
    execute something later; `commit` skips it unless `allow_flagged` names it.
    """

    path: str
    kind: ChangeKind
    old_path: str | None = None
    is_flagged: bool = False
    flag_reason: str | None = None
    entry: Entry = "file"
    size: int = 0


@dataclass(frozen=True, slots=True)
class Conflict:
    """A change that was not committed, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class CommitReport:
    """Each selected change is in one of the lists. `merged` ones were combined with changes made on the host;
    `skipped` ones are flagged and were not named in `allow_flagged`.
    """

    committed: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every change was committed or merged."""
        return not self.conflicts and not self.skipped
