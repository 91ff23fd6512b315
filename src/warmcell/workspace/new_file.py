"""New files of the host that have their name when they are complete."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO


@contextmanager
def create_file(path: str) -> Iterator[BinaryIO]:
    """A file that gets its name after the block, or is removed if the block raises.

    `FileExistsError` if something has that name by then: others may have created it since the caller looked.
    """
    draft = f"{path}.{os.urandom(6).hex()}.new"
    try:
        with open(draft, "xb") as file:
            yield file
        _give_name(draft, path)
    finally:
        with suppress(OSError):
            os.unlink(draft)


def _give_name(draft: str, path: str) -> None:
    """A link, unlike a rename, never replaces a file."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links, such as vfat
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.rename(draft, path)
