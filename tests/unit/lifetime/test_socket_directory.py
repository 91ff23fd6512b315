"""Directories for Unix sockets, wherever TMPDIR is."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from warmcell.lifetime.temporary_directory import socket_directory


@pytest.mark.needs("linux")
@pytest.mark.parametrize("name", ["short", "long" * 40])
def test_a_socket_can_be_made_and_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    place = tmp_path / name
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    before = set(os.listdir("/proc/self/fd"))
    with socket_directory("test") as directory, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{directory}/socket")
        server.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{directory}/socket")
        (made,) = place.iterdir()
        assert [path.name for path in made.glob("socket")] == ["socket"]
    assert list(place.iterdir()) == [] and set(os.listdir("/proc/self/fd")) == before
