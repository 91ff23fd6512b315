"""Events of `backend.stream` (output as it arrives, then the result), and outcomes of `run_many`."""

from __future__ import annotations

from typing import Literal

from warmcell.core.errors import SandboxError
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """For the request at `index`: its `result`, or the `error` that `execute` would have raised.

    `error.fault` "host" means that nothing was learnt about the program, not even by a second attempt.
    """

    index: int
    result: ExecResult | None = None
    error: SandboxError | None = None
