"""The path of the Docker socket, which a server creates and removes."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from warmcell.interfaces.docker import server
from warmcell.interfaces.docker.engine import DockerSettings


@pytest.mark.parametrize("has_successor", [True, False])
def test_a_server_removes_only_its_own_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_successor: bool
) -> None:
    """The next server may start while this one ends its containers."""
    path = str(tmp_path / "docker.sock")
    successors = []

    async def end_while_another_starts(_: object, listening: socket.socket, *__: Any) -> None:
        listening.close()
        successors.extend([server.listen(path)] if has_successor else [])

    monkeypatch.setattr(server, "_serve", end_while_another_starts)
    server.serve(DockerSettings(socket=path), lambda url: None)
    assert os.path.exists(path) == has_successor
    for successor in successors:
        successor.close()
