"""Locks that guests ask for: the manager looks at their files, which may be on file systems that fail."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest
from tests.helpers import in_a_fork, lingering_socket

from warmcell.cage.linux import guest_files


def test_a_file_whose_server_is_gone_ends_no_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised, the error would end the manager, and with it the guests of all others."""

    def fail(file: int) -> bool:
        raise OSError(errno.ENOTCONN, "fstatvfs")

    monkeypatch.setattr(guest_files, "copy_of", lambda thread, descriptor: os.dup(descriptor))
    with open(os.devnull, "rb") as file:
        assert guest_files.may_lock(os.getpid(), file.fileno(), fcntl.LOCK_SH, fail) == errno.ENOTCONN


@pytest.mark.needs("linux")
@pytest.mark.attack("RX-16")
def test_a_socket_that_lingers_holds_up_no_manager() -> None:
    """A guest closes it while the manager has a copy: closing that waits until the peer has read everything."""

    def lock() -> int:
        with lingering_socket() as own:
            return guest_files.may_lock(os.getpid(), own, fcntl.LOCK_SH, lambda file: bool(os.close(own)))

    assert in_a_fork(lock, 60) == errno.EOPNOTSUPP
