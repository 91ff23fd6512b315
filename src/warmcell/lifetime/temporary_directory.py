"""Directories for what no guest writes to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from warmcell.lifetime.held_directories import make_held, writable_place


@contextmanager
def temporary_directory(kind: str) -> Iterator[str]:
    """A held one, gone at the end of the block."""
    held = make_held(f"warmcell-{kind}-", writable_place())
    try:
        yield held.path
    finally:
        shutil.rmtree(held.path, ignore_errors=True)
        held.let_go()
