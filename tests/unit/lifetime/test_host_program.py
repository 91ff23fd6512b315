"""Checks on the host program: unpatched sockets, and our own files in place."""

from __future__ import annotations

import errno
import os
import socket

import pytest

import warmcell
from warmcell.core.errors import BackendUnavailable
from warmcell.lifetime import host_program
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.portal import Portal


@pytest.mark.parametrize(
    ("module", "tool"), [("pytest_socket", "pytest_socket"), ("eventlet.greenio.base", "eventlet")]
)
def test_replaced_sockets_are_refused_by_name(module: str, tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Guarded(socket.socket):
        def __new__(cls, *args: object, **options: object) -> Guarded:
            raise RuntimeError("a test tried to use a socket")

    async def work() -> None: ...

    Guarded.__module__ = module
    monkeypatch.setattr(socket, "socket", Guarded)
    with pytest.raises(BackendUnavailable, match=f"^{tool} has replaced socket.socket") as caught:
        Portal().call(work)
    assert caught.value.hint and "enable_socket" in caught.value.hint


def test_the_usual_sockets_are_accepted() -> None:
    host_program.check_sockets()


def test_a_removed_installation_is_not_a_matter_of_tmpdir() -> None:
    own = os.path.join(warmcell.__path__[0], "guest", "node_worker.cjs")
    gone = host_failure(FileNotFoundError(errno.ENOENT, "No such file or directory", own))
    assert gone.fault == "host" and gone.hint and "Reinstall" in gone.hint and "TMPDIR" not in gone.hint
    other = host_failure(FileNotFoundError(errno.ENOENT, "No such file or directory", "/nowhere/x"))
    assert other.hint and "TMPDIR" in other.hint
