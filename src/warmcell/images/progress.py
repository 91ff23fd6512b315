"""Progress of imports and pulls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from warmcell.core.records import dataclass


@dataclass(frozen=True, slots=True)
class ImageProgress:
    """One step forward: `done` of `total` bytes. `what` is the digest of a layer, or a path."""

    step: Literal["copy", "pull", "unpack"]
    what: str
    done: int
    total: int


OnProgress = Callable[[ImageProgress], None]


def report_chunks(
    chunks: Iterable[bytes],
    on_progress: OnProgress | None,
    step: Literal["copy", "pull", "unpack"],
    what: str,
    total: int,
) -> Iterator[bytes]:
    """The same chunks, reported as they pass."""
    done = 0
    for chunk in chunks:
        done += len(chunk)
        if on_progress is not None:
            on_progress(ImageProgress(step, what, done, total))
        yield chunk
