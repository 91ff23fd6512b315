"""Outcome: the result or error of one of many requests."""

from __future__ import annotations

from warmcell.core.errors import SandboxError
from warmcell.core.records import dataclass
from warmcell.core.types import ExecResult


@dataclass(frozen=True, slots=True)
class Outcome:
    """For the request at `index`: its `result`, or the `error` that `execute` would have raised.

    `error.fault` "host" means that nothing was learnt about the program, not even by a second attempt.
    """

    index: int
    result: ExecResult | None = None
    error: SandboxError | None = None
