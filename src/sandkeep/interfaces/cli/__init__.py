"""The `sandkeep` command. Data goes to stdout, everything else to stderr.

Nothing heavy is imported here: each subcommand brings in what it needs when it is called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from sandkeep.interfaces.cli.exits import BROKEN_PIPE, INTERRUPTED, OUR_FAILURE, UsageError
from sandkeep.interfaces.cli.voice import say_error, silence


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status. Nothing that happens in here ends as a traceback."""
    try:
        status = _dispatch(sys.argv[1:] if argv is None else list(argv))
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except UsageError as error:
        say_error(error.message, error.hint)
        return error.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        silence()
        return BROKEN_PIPE
    except Exception as error:
        return _report_our_failure(error)


def _dispatch(argv: list[str]) -> int:
    from sandkeep.interfaces.cli.parser import parse

    arguments = parse(argv)
    status: int = arguments.handler(arguments)
    return status


def _report_our_failure(error: Exception) -> int:
    """A guest's own status can be anything, so a failure of ours must never look like Python's exit status 1."""
    from sandkeep.core.errors import SandboxError

    if isinstance(error, SandboxError):
        say_error(error.message, error.hint)
    elif isinstance(error, OSError):
        say_error(f"{error.strerror or error}".lower())
    else:
        say_error(f"unexpected {type(error).__name__}: {error}", "set SANDKEEP_DEBUG=1 for the traceback")
    if os.environ.get("SANDKEEP_DEBUG") == "1":
        raise error
    _flush_or_silence()
    return OUR_FAILURE


def _flush_or_silence() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        silence()
