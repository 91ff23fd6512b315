"""Reads whole directories, to compare them, and commits an upper directory that a test made."""

from __future__ import annotations

import os
from pathlib import Path

from warmcell.changes.base import Bases
from warmcell.changes.commit import Committer
from warmcell.changes.detect import Detector, Lower
from warmcell.changes.model import CommitReport
from warmcell.changes.upper import UpperDirectory
from warmcell.workspace.root import Root


def read_tree(directory: Path) -> dict[str, str]:
    """Every file with its content, every link with its target."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_text(errors="surrogateescape")
    return found


def commit(place: Path) -> CommitReport:
    """Of `layer/upper` to `lower`, with room for the journal and bases in `layer`."""
    lower, upper = Root(place / "lower"), UpperDirectory(str(place / "layer/upper"))
    bases = Bases(str(place / "layer/bases"))
    start_ns = (place / "layer").stat().st_ctime_ns + 10**12
    with Lower(lower) as looking:
        items = Detector(upper, looking, bases, start_ns, str(place)).detect()
    committer = Committer(lower, upper, bases, start_ns, str(place / "layer"), upper.root)
    try:
        return committer.commit(items, (), dry_run=False)
    finally:
        upper.close()
        lower.close()
