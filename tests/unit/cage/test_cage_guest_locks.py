"""Locks that guests ask for: the manager looks at their files, which may be on file systems that fail."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from warmcell.cage.linux import guest_files


def test_a_file_whose_server_is_gone_ends_no_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised, the error would end the manager, and with it the guests of all others."""

    def fail(file: int) -> bool:
        raise OSError(errno.ENOTCONN, "fstatvfs")

    monkeypatch.setattr(guest_files, "copy_of", lambda thread, descriptor: os.dup(descriptor))
    with open(os.devnull, "rb") as file:
        assert guest_files.may_lock(os.getpid(), file.fileno(), fcntl.LOCK_SH, fail) == errno.ENOTCONN
