"""`warmcell token`: what the list of tokens shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.unit.interfaces.cli.conftest import Ended


def test_the_list_shows_quotas(warmcell: Callable[..., Ended], tmp_path: Path) -> None:
    file = str(tmp_path / "tokens.json")
    made = warmcell("token", "new", "team", "--sandboxes", "3", "--disk-mb", "64", "--tokens", file)
    assert made.status == 0, made.stderr
    listed = warmcell("token", "list", "--tokens", file).stdout
    assert "team" in listed and "sandboxes=3 disk_mb=64" in listed
    assert made.stdout.strip() not in listed
    [row] = json.loads(warmcell("token", "list", "--json", "--tokens", file).stdout)
    assert (row["name"], row["sandboxes"], row["disk_mb"]) == ("team", 3, 64)
