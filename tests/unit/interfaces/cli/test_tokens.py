"""`warmcell token`: what the list of tokens shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("name", ["tokens", "tokens.toml", "tokens.json.bak", "tokens.JSON5"])
def test_a_file_that_could_not_be_read_again_is_not_written(
    warmcell: Callable[..., Ended], tmp_path: Path, name: str
) -> None:
    for action in ("new", "revoke"):
        refused = warmcell("token", action, "team", "--tokens", str(tmp_path / name))
        assert refused.status == 2 and "token files are JSON" in refused.stderr and "name it .json" in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("mcp", "--http", "--port", "none")])
def test_an_empty_token_starts_no_server(warmcell: Callable[..., Ended], command: tuple[str, ...]) -> None:
    """As of a variable that is not set: the server would take every local user."""
    ended = warmcell(*command, "--token", "")
    assert ended.status == 2 and ended.stderr.startswith("error: --token is empty\n")
