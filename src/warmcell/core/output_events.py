"""What `backend.stream` yields: output as it arrives, then the result."""

from __future__ import annotations

from typing import Literal

from warmcell.core.records import dataclass
from warmcell.core.types import ExecResult


@dataclass(frozen=True, slots=True)
class OutputEvent:
    """Bytes that the guest wrote, in the order of their stream. A character may be split between two events."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class ResultEvent:
    """The last event: what `execute` would have returned, with the whole output in it."""

    result: ExecResult


StreamEvent = OutputEvent | ResultEvent
