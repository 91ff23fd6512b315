"""Exit statuses, and the one exception that the command line raises about itself."""

from __future__ import annotations

OK = 0
NOT_ACCEPTED = 1
USAGE = 2
TIMEOUT = 124
OUR_FAILURE = 125
INTERRUPTED = 130
MEMORY = 137
BROKEN_PIPE = 141


class UsageError(Exception):
    """The command line is wrong; nothing was run. Said in lower case, with the remedy as `hint`."""

    def __init__(self, message: str, hint: str | None = None, status: int = USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.status = status
