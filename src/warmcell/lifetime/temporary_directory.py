"""Temporary directories that guests do not write to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from warmcell.lifetime.held_directories import create_held_directory, writable_place


@contextmanager
def temporary_directory(kind: str) -> Iterator[str]:
    """A held directory, removed at the end of the block."""
    held = create_held_directory(f"warmcell-{kind}-", writable_place())
    try:
        yield held.path
    finally:
        shutil.rmtree(held.path, ignore_errors=True)
        held.let_go()
