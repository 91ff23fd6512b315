"""Descriptors opened and closed with the interpreter lock held: the same results and errors, and no other thread runs."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
from collections.abc import Iterator

import pytest
from tests.helpers import require

from warmcell.lifetime import descriptors


@pytest.fixture(params=[False, True])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "_libc", None)
    if request.param:
        require(sys.platform == "linux", "only on Linux")
        descriptors.keep_interpreter_lock()


@pytest.mark.usefixtures("calls")
def test_a_pipe_carries_data_and_is_not_inherited() -> None:
    reader, writer = descriptors.make_pipe()
    assert not os.get_inheritable(reader) and not os.get_inheritable(writer)
    os.write(writer, b"x")
    descriptors.close(writer)
    assert os.read(reader, 2) == b"x" and os.read(reader, 1) == b""
    descriptors.close(reader)
    with pytest.raises(OSError, match="Bad file descriptor") as raised:
        descriptors.close(reader)
    assert raised.value.errno == errno.EBADF


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("seconds", [None, 5.0])
def test_a_pair_of_sockets_blocks_and_keeps_messages_apart(seconds: float | None) -> None:
    """Whatever the default timeout of the program is."""
    socket.setdefaulttimeout(seconds)
    try:
        ours, theirs = descriptors.make_socket_pair(socket.SOCK_SEQPACKET)
    finally:
        socket.setdefaulttimeout(None)
    assert ours.gettimeout() is None and os.get_blocking(ours.fileno()) and os.get_blocking(theirs)
    assert not os.get_inheritable(ours.fileno()) and not os.get_inheritable(theirs)
    for message in (b"one", b"two"):
        os.write(theirs, message)
    assert [ours.recv(10), ours.recv(10)] == [b"one", b"two"]
    descriptors.close(theirs)
    assert ours.recv(1) == b""
    ours.close()


@pytest.fixture
def patient_interpreter() -> Iterator[None]:
    """Threads are switched only where one gives up the lock."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("patient_interpreter")
def test_no_other_thread_gets_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    require(sys.platform == "linux", "only on Linux")
    monkeypatch.setattr(descriptors, "_libc", None)
    descriptors.keep_interpreter_lock()
    turns, is_over = [0], threading.Event()

    def count() -> None:
        while not is_over.is_set():
            turns[0] += 1
            os.stat("/")  # gives up the lock

    for descriptor in descriptors.make_pipe():  # so that everything is loaded
        descriptors.close(descriptor)
    thread = threading.Thread(target=count)
    thread.start()
    while not turns[0]:
        os.stat("/")
    before = turns[0]
    for _ in range(100):
        ours, theirs = descriptors.make_socket_pair(socket.SOCK_STREAM)
        for descriptor in (*descriptors.make_pipe(), ours.detach(), theirs):
            descriptors.close(descriptor)
    assert turns[0] == before
    is_over.set()
    thread.join()
