"""RunRecord: one structured log record per run, on the logger "warmcell". It costs nothing until somebody listens."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import SandboxError

if TYPE_CHECKING:
    from warmcell.core.types import ExecRequest, ExecResult

LOGGER = "warmcell"


class RunRecord:
    """Around one run, by its backend: `with RunRecord(name, request) as record: record.result = ...`.

    The level is INFO, so that nothing is printed where nobody asked for it. Fields of the record, beside the message:
    `backend`, `language`, `exit_code`, `duration`, `queued`, and for runs without a result `fault` and `error`.
    """

    __slots__ = ("_backend", "_language", "result")

    def __init__(self, backend: str, request: ExecRequest) -> None:
        self._backend = backend
        self._language = str(request.language)
        self.result: ExecResult | None = None

    def __enter__(self) -> RunRecord:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Whoever wants records has imported it; importing it takes longer than most programs run.
        logging = sys.modules.get("logging")
        if logging is None:
            return
        logger = logging.getLogger(LOGGER)
        if logger.isEnabledFor(logging.INFO):
            fields = self._fields(error)
            said = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
            logger.info("run %s", said, extra=fields)

    def _fields(self, error: BaseException | None) -> dict[str, Any]:
        result = self.result if error is None else getattr(error, "result", None)
        return {
            "backend": self._backend,
            "language": self._language,
            "exit_code": result.exit_code if result is not None else None,
            "duration": round(result.duration, 6) if result is not None else None,
            "queued": round(result.queued, 6) if result is not None else None,
            "fault": _fault(error),
            "error": error.code if isinstance(error, SandboxError) else type(error).__name__ if error else None,
        }


def _fault(error: BaseException | None) -> str | None:
    if error is None:
        return None
    if isinstance(error, SandboxError):
        return error.fault
    return "host" if isinstance(error, Exception) else "caller"  # cancelled, or interrupted
