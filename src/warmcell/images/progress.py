"""Progress events of imports, pulls and builds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from warmcell.core.records import dataclass


@dataclass(frozen=True, slots=True)
class ImageProgress:
    """`done` of `total` bytes. `what` is the digest of a layer, or a path."""

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
    """Yield the chunks, reporting each."""
    done = 0
    for chunk in chunks:
        done += len(chunk)
        if on_progress is not None:
            on_progress(ImageProgress(step, what, done, total))
        yield chunk


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Step `number` of `total`, described by `text`. `stage` is the name or number of its stage, if there are several.

    `data` is the output, in the state "output". `seconds` counts from the start of the step.
    """

    number: int
    total: int
    text: str
    state: Literal["started", "output", "cached", "done", "failed"]
    stage: str = ""
    data: bytes = b""
    seconds: float = 0.0


OnBuildProgress = Callable[[BuildProgress], None]
