"""Directories for Unix sockets, wherever TMPDIR is."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from tests.helpers import open_descriptors

import warmcell
from warmcell.lifetime.held_directories import PREFIXES
from warmcell.lifetime.temporary_directory import socket_directory


@pytest.mark.needs("linux")
@pytest.mark.parametrize("name", ["short", "long" * 40])
def test_a_socket_can_be_made_and_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    place = tmp_path / name
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    before = open_descriptors()
    with socket_directory("test") as directory, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{directory}/socket")
        server.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{directory}/socket")
        (made,) = place.iterdir()
        assert [path.name for path in made.glob("socket")] == ["socket"]
    assert list(place.iterdir()) == [] and open_descriptors() <= before


def test_directories_of_killed_programs_are_removed_whatever_their_kind() -> None:
    sources = (path.read_text() for path in Path(warmcell.__file__).parent.rglob("*.py"))
    call = re.compile(r"""(?:temporary|socket)_directory\(["'](\w+)["']\)""")
    kinds = {kind for source in sources for kind in call.findall(source)}
    assert {"node", "serve"} <= kinds and {f"warmcell-{kind}-" for kind in kinds} <= set(PREFIXES)
