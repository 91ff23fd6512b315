"""The server that mounts overlays: failures cost one request, and a new server knows none of the earlier mounts."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.changes.conftest import Open
from tests.helpers import PATIENCE, is_root

from warmcell.cage import overlay_server
from warmcell.cage.overlay_server import OverlayServer
from warmcell.cage.wire import receive_packet
from warmcell.changes import overlay
from warmcell.changes.overlay import Overlay

pytestmark = pytest.mark.needs("linux")


def test_an_overlay_without_a_free_descriptor_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[int] = []
    tree = os.open(tmp_path, os.O_RDONLY)

    def fail(*_: Any, **__: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    server = SimpleNamespace(mount=lambda *_: (7, tree), forget=forgotten.append)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="Too many open files"):
        patched.setattr(overlay, "_server", server)
        patched.setattr(os, "open", fail)
        Overlay(str(tmp_path), str(tmp_path))
    assert forgotten == [7]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(tree)


def test_an_answer_that_cannot_be_sent_is_a_failure_of_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    monkeypatch.setattr(overlay_server, "send_packet", fail)
    server: Any = SimpleNamespace(copy=lambda number: os.open(os.devnull, os.O_RDONLY))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        overlay_server._answer(theirs, server, {"overlay": 7})
        answer, _ = receive_packet(ours)
    assert answer == {"failed": ["serve overlay", errno.ETOOMANYREFS, "7"]}


def test_a_server_forgets_an_overlay_that_an_earlier_one_mounted() -> None:
    server = OverlayServer.__new__(OverlayServer)
    server._mounted = {}
    server.forget(7)


@pytest.mark.needs("user namespaces")
def test_changes_whose_server_died_can_be_closed(open_sandbox: Open, state_home: Path) -> None:
    if is_root():
        pytest.skip("root has no overlays")
    first = open_sandbox()
    process = overlay._server._process
    assert process is not None
    process.kill()
    assert process.await_end(PATIENCE)
    second = open_sandbox()
    first.close()
    assert len(list(state_home.iterdir())) == 1
    second.close()
    assert list(state_home.iterdir()) == []
