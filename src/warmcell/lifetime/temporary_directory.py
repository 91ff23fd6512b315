"""Temporary directories that guests do not write to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from warmcell.lifetime.held_directories import create_held_directory, writable_directory

#: The path of a Unix socket may have 107 bytes, including the socket's name.
_MAX_SOCKET_DIRECTORY = 99


@contextmanager
def temporary_directory(kind: str) -> Iterator[str]:
    """A held directory, removed at the end of the block."""
    with create_held_directory(f"warmcell-{kind}-", writable_directory()) as held:
        try:
            yield held.path
        finally:
            shutil.rmtree(held.path, ignore_errors=True)


@contextmanager
def socket_directory(kind: str) -> Iterator[str]:
    """A directory for Unix sockets of this process. If its path is too long, yields one in /proc/self/fd."""
    with temporary_directory(kind) as path:
        if len(os.fsencode(path)) <= _MAX_SOCKET_DIRECTORY:
            yield path
            return
        descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
