"""Progress: of imports and pulls, and of builds (when a step starts, for its output, and when it has ended)."""

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


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Step `number` of `total`, as `text` describes it; `stage` is the name or number of its stage, if there are any.

    `data` is output, for the state "output". `seconds` counts from the start of the step.
    """

    number: int
    total: int
    text: str
    state: Literal["started", "output", "cached", "done", "failed"]
    stage: str = ""
    data: bytes = b""
    seconds: float = 0.0


OnBuildProgress = Callable[[BuildProgress], None]
