"""Outcome: what became of one of many requests."""

from __future__ import annotations

from warmcell.core.errors import SandboxError
from warmcell.core.records import dataclass
from warmcell.core.types import ExecResult


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of the request at `index`: its `result`, or the `error` that `execute` would have raised.

    `error.fault` says whose it was: "host" means that nothing was learnt about the program, also in a second attempt.
    """

    index: int
    result: ExecResult | None = None
    error: SandboxError | None = None
