"""A bound on the shutdown: a process that hangs in it exits, whatever its event loop does."""

from __future__ import annotations

import logging
import os
import threading

from warmcell.interfaces.serve.settings import Settings

_log = logging.getLogger("warmcell.serve")
#: After `drain_timeout`: for the responses of runs that were ended then.
LAST_RESPONSE_SECONDS = 5.0
#: After that: for removing sandboxes. Then the process exits, and the cages end with it.
CLEANUP_SECONDS = 10.0
#: With `--state`, before that: for the variables of sessions.
SAVE_SECONDS = 30.0
#: With a key too: for the files, which are copied. What is not saved by then is as it was saved before.
SAVE_FILES_SECONDS = 300.0
EXIT_STATUS = 70


def exit_after(seconds: float) -> None:
    """Exit the process after so many seconds, from a thread of its own. Called when the shutdown starts."""

    def give_up() -> None:
        _log.error("shutdown did not finish within %g s; exiting", seconds)
        logging.shutdown()
        os._exit(EXIT_STATUS)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()


def shutdown_seconds(settings: Settings) -> float:
    """The longest time from SIGTERM to the exit of a process."""
    saving = 0.0 if settings.state is None else SAVE_SECONDS
    saving += 0.0 if settings.state_key is None else SAVE_FILES_SECONDS
    return settings.drain_timeout + LAST_RESPONSE_SECONDS + saving + CLEANUP_SECONDS
