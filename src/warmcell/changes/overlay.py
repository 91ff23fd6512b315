"""Overlays over host directories, mounted by one server process for all sandboxes of the program."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from warmcell.cage.overlay_server import UPPER
from warmcell.cage.plan import Bind, encode_binds
from warmcell.cage.wire import receive_packet, send_packet
from warmcell.core.errors import EnforcerFailed, EnforcerUnavailable, SandboxError
from warmcell.core.light import closing_fd, on_error
from warmcell.languages.config import ProcessConfig
from warmcell.languages.python import find_interpreter
from warmcell.lifetime.descriptors import host_failure, is_exhaustion
from warmcell.lifetime.ownership import own_until_exit
from warmcell.pool.manager_process import ManagerProcess
from warmcell.workspace.root import temporary_name

_PATIENCE_SECONDS = 30.0
_NAME = "overlay"


class OverlayUnavailable(EnforcerUnavailable):
    """This host cannot mount an overlay over this directory."""


class Overlay:
    """A mounted overlay. `root` is a descriptor of its top directory. After `close`, new cells cannot use it."""

    def __init__(self, lower: str, layer: str) -> None:
        """`layer` has the empty directories `upper` and `work`."""
        self.upper = os.path.join(layer, UPPER)
        self._number, self._tree = _server.mount(_pin(lower), _pin(layer, writable=True))
        self.root = -1
        with on_error(self.close):
            self.root = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._tree)
            probe = _probe(self.root)
        #: Files of an overlay may report another device than its directories.
        self.devices = tuple({os.fstat(self.root).st_dev, probe.st_dev})
        #: By the file system's own clock, before any guest can write.
        self.started_ns = probe.st_ctime_ns

    @contextmanager
    def copy_tree(self) -> Iterator[int]:
        """A detached copy of the mount for one cell, closed after the block."""
        with closing_fd(_server.copy(self._number)) as tree:
            yield tree

    def close(self) -> None:
        """Idempotent."""
        tree, self._tree = self._tree, -1
        if tree >= 0:
            os.close(tree)
            if self.root >= 0:
                os.close(self.root)
            _server.forget(self._number)


def _pin(path: str, *, writable: bool = False) -> Bind:
    status = os.stat(path, follow_symlinks=False)
    return Bind(path, "/", writable, f"{status.st_dev}:{status.st_ino}")


def _probe(root: int) -> os.stat_result:
    """The status of a temporary file in the overlay, whose creation proves that it is writable."""
    name = temporary_name()
    try:
        file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=root)
    except PermissionError:  # the host's directory is not writable, so neither is it for the guest
        return os.fstat(root)
    except OSError as error:
        raise OverlayUnavailable(_NAME, f"cannot be written: {error.strerror}") from None
    try:
        return os.fstat(file)
    finally:
        os.close(file)
        os.unlink(name, dir_fd=root)


class _Server:
    """The server process, started with the first overlay. A fork of the program starts its own."""

    def __init__(self) -> None:
        self.abandon()
        own_until_exit(self)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._process: ManagerProcess | None = None
        self._numbers = count(1)

    def mount(self, lower: Bind, layer: Bind) -> tuple[int, int]:
        """Mount an overlay; returns its number and a detached copy of the mount."""
        with self._lock:
            if self._process is None or not self._process.is_running():
                self._process = _start()
            number = next(self._numbers)
            order = {"overlay": number, "lowers": encode_binds([lower]), "layer": encode_binds([layer])[0]}
            with on_error(lambda: self._forget(number)):  # mounted, but the answer could not be sent or received
                return number, self._ask(order)[0]

    def copy(self, number: int) -> int:
        with self._lock:
            return self._ask({"overlay": number})[0]

    def forget(self, number: int) -> None:
        with self._lock:
            self._forget(number)

    def _forget(self, number: int) -> None:
        """Never fails: the callers give up their own files, and the mount ends with the server at the latest."""
        if self._process is not None and self._process.is_running():
            with suppress(SandboxError):
                self._ask({"overlay": number, "forget": True})

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close_channels()
            process.await_end(5)

    def _ask(self, order: dict[str, Any]) -> list[int]:
        if self._process is None:
            raise EnforcerFailed(_NAME, "the overlay server was closed")
        try:
            send_packet(self._process.control, order)
        except OSError as error:
            if is_exhaustion(error):
                raise host_failure(error, "ask for an overlay") from None
            raise EnforcerFailed(_NAME, f"the overlay server exited: {error.strerror}") from None
        answer, descriptors = _receive(self._process)
        if "failed" in answer:
            raise _refusal(*answer["failed"])
        return descriptors


def _start() -> ManagerProcess:
    process = ManagerProcess(find_interpreter(ProcessConfig()).path)
    with on_error(process.discard):
        process.send_order({"overlays": True})
        answer, descriptors = _receive(process)
        if "pid" in answer:
            process.switch_to(answer["pid"], descriptors[0])
            answer, _ = _receive(process)
        if "failed" in answer:
            raise _refusal(*answer["failed"])
    return process


def _receive(process: ManagerProcess) -> tuple[dict[str, Any], list[int]]:
    poll = select.poll()
    poll.register(process.control, select.POLLIN)
    if not poll.poll(_PATIENCE_SECONDS * 1000):
        process.kill()
        raise EnforcerFailed(_NAME, f"the overlay server did not answer within {_PATIENCE_SECONDS:g} s")
    try:
        answer, descriptors = receive_packet(process.control)
    except OSError as error:
        if is_exhaustion(error):
            raise host_failure(error, "receive an overlay") from None
        answer, descriptors = {}, []
    if not answer:
        raise EnforcerFailed(_NAME, f"the overlay server exited: {process.read_last_error()}")
    return answer, descriptors


def _refusal(step: str, number: int, what: str) -> SandboxError:
    reason = os.strerror(number) if number else "failed"
    if number in (errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return host_failure(OSError(number, reason), step)
    return OverlayUnavailable(_NAME, f"could not {step}: {reason} ({what})")


_server = _Server()
