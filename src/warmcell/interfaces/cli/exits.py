"""Exit statuses, and the exception for usage errors."""

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
    """The command line is wrong; nothing was run. The message is in lower case, `hint` is the remedy."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
