"""What `backend.stream` yields: output as it comes, and last the result."""

from __future__ import annotations

from typing import Literal

from warmcell.core.records import dataclass
from warmcell.core.types import ExecResult


@dataclass(frozen=True, slots=True)
class OutputEvent:
    """Bytes that the guest wrote, in the order of their stream. A character may be split over two of them."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class ResultEvent:
    """The last one: what `execute` would have returned, with the whole output in it once more."""

    result: ExecResult


StreamEvent = OutputEvent | ResultEvent
