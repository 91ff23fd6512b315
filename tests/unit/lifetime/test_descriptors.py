"""Descriptors that one object owns."""

from __future__ import annotations

import errno
import os
import socket

import pytest
from tests.helpers import in_a_fork

from warmcell.core.errors import BackendBusy
from warmcell.lifetime.descriptors import Descriptors, host_failure

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def is_open(descriptor: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def test_all_are_closed_once() -> None:
    owned = Descriptors()
    ours, theirs = owned.socketpair(socket.SOCK_STREAM)
    made = [*owned.pipe(), ours.fileno(), theirs, owned.open(lambda: os.open("/", os.O_RDONLY))]
    assert all(map(is_open, made)) and not any(map(os.get_inheritable, made))
    owned.close_only(made[0])
    again = os.open("/dev/null", os.O_RDONLY)  # takes the number that became free
    try:
        owned.close_only(made[0])
        owned.close()
        assert is_open(again) and not any(map(is_open, set(made) - {again}))
    finally:
        os.close(again)


def test_what_was_given_away_is_not_closed_and_what_was_taken_is() -> None:
    owned, other = Descriptors(), Descriptors()
    reader, writer = owned.pipe()
    other.take([owned.give(reader)])
    owned.close()
    assert is_open(reader) and not is_open(writer)
    other.close()
    assert not is_open(reader)


def test_a_failure_while_making_something_leaves_nothing() -> None:
    made: list[int] = []
    with pytest.raises(OSError, match="third"), Descriptors() as owned:
        made += owned.pipe()
        raise OSError("third step")
    assert not any(map(is_open, made))
    with Descriptors() as kept:
        made = [*kept.pipe()]
    assert all(map(is_open, made))
    kept.close()


def test_a_fork_has_no_copies() -> None:
    owned = Descriptors()
    reader, writer = owned.pipe()
    assert in_a_fork(lambda: [is_open(reader), is_open(writer), reader in owned]) == [False, False, False]
    os.write(writer, b"x")
    assert os.read(reader, 1) == b"x"
    owned.close()


def test_exhaustion_names_the_limit_and_the_remedy() -> None:
    import resource

    said = host_failure(OSError(errno.EMFILE, "Too many open files"), "start a zygote")
    assert isinstance(said, BackendBusy) and said.fault == "host"
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert f"RLIMIT_NOFILE is {limit}" in str(said) and "ulimit -n" in str(said) and "start a zygote" in str(said)
    assert "fs.file-max" in str(host_failure(OSError(errno.ENFILE, "Too many open files in system")))
    assert "/x" in str(host_failure(OSError(errno.ENOSPC, "No space left on device", "/x")))
