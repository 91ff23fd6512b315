"""Progress of builds: one event when a step starts, for its output, and when it has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from warmcell.core.records import dataclass


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
