"""Watched directories of the E2B file service."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warmcell.guest

_FILE = Path(warmcell.guest.__file__).parent / "file_watches.py"
_SPEC = importlib.util.spec_from_file_location("file_watches", _FILE)
assert _SPEC is not None and _SPEC.loader is not None
file_watches: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(file_watches)


def test_a_file_that_is_removed_while_its_directory_is_scanned_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    def scan_and_remove(directory: str) -> Iterator[os.DirEntry[str]]:
        for entry in sorted(scan(directory), key=lambda entry: entry.name):
            if entry.name == "a.lock":
                os.unlink(entry.path)
            yield entry

    watches = file_watches.Watches()
    watches.begin("w", str(tmp_path), True)
    (tmp_path / "new" / "inner").mkdir(parents=True)
    (tmp_path / "new" / "a.lock").write_text("x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scan_and_remove)
        first, _ = watches.take("w")
    assert ["new/inner", "CREATE"] in first
    (tmp_path / "new" / "inner" / "late").touch()
    later, _ = watches.take("w")
    assert ["new/inner/late", "CREATE"] in later
