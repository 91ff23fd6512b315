"""The path of the Docker socket, which a server creates and removes."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warmcell.interfaces.docker import server
from warmcell.interfaces.docker.engine import DockerSettings


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """The path of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="wc", dir="/tmp") as directory:
        yield Path(directory)


@pytest.mark.parametrize("has_successor", [True, False])
def test_a_server_removes_only_its_own_socket(
    short_directory: Path, monkeypatch: pytest.MonkeyPatch, has_successor: bool
) -> None:
    """The next server may start while this one ends its containers."""
    path = str(short_directory / "docker.sock")
    successors = []

    async def end_while_another_starts(_: object, listening: socket.socket, *__: Any) -> None:
        listening.close()
        successors.extend([server.listen(path)] if has_successor else [])

    monkeypatch.setattr(server, "_serve", end_while_another_starts)
    server.serve(DockerSettings(socket=path), lambda url: None)
    assert os.path.exists(path) == has_successor
    for successor in successors:
        successor.close()
