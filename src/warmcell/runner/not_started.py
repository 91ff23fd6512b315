"""Errors for runs that did not start: none of the guest's code ran."""

from __future__ import annotations

import errno

from warmcell.core.errors import CommandNotFound, ExecutionFailed, InvalidRequest, SandboxError

#: A value of `Exit.start_failure`.
JOB_UNREAD = "0 its process ended before it had read its job"


_LONGEST_FAILURE, _MOST_DIGITS = 8192, 9


def failure_or_unread(text: str) -> str:
    """The text if our code can have sent it, else `JOB_UNREAD`: an image's own Python may write anything instead."""
    number = text.partition(" ")[0]
    is_number = number.isdecimal() and len(number) <= _MOST_DIGITS
    is_ours = is_number and len(text) <= _LONGEST_FAILURE and not text.startswith(JOB_UNREAD)
    return text if is_ours else JOB_UNREAD


class NotStarted(ExecutionFailed):
    """`errno` is that of exec, or 0 if exec was not reached."""

    def __init__(self, errno: int, reason: str) -> None:
        super().__init__(f"could not start the program: {reason}")
        self.errno = errno


class JobUnread(NotStarted):
    """The cell was killed before it had read its job. The run can be repeated in another cell."""


_NOT_FOUND = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


def command_refusal(command: str, failure: NotStarted) -> SandboxError:
    """The typed error for an errno of exec."""
    if failure.errno in _NOT_FOUND:
        return CommandNotFound(command)
    if failure.errno == errno.EACCES:
        return CommandNotFound(
            command, "is not executable: permission denied", hint="chmod +x, or name its interpreter"
        )
    if failure.errno == errno.ENOEXEC:
        hint = "begin it with a line such as #!/bin/sh, or name its interpreter"
        return CommandNotFound(command, "is not executable: the kernel does not know its format", hint=hint)
    if failure.errno == errno.E2BIG:
        return InvalidRequest("argument list too long", field="args", hint="use stdin or a file")
    return failure
