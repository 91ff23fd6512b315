"""Runs that came to nothing: none of the guest's code ran, and none will."""

from __future__ import annotations

from warmcell.core.errors import ExecutionFailed

#: As a failure to start, in the words of `Exit.start_failure`.
JOB_UNREAD = "0 its process ended before it had read its job"


class NotStarted(ExecutionFailed):
    """`errno` is what exec said, or 0 where it never came to that."""

    def __init__(self, errno: int, reason: str) -> None:
        super().__init__(f"could not start the program: {reason}")
        self.errno = errno


class JobUnread(NotStarted):
    """Somebody ended the cell while it waited: another one can take its place."""
