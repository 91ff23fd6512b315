"""A bound on the shutdown: a process that hangs in it exits, whatever its event loop does."""

from __future__ import annotations

import logging
import os
import threading

_log = logging.getLogger("warmcell.serve")
#: After `drain_timeout`: for the responses of runs that were ended then.
LAST_RESPONSE_SECONDS = 5.0
#: After that: for removing sandboxes. Then the process exits, and the cages end with it.
CLEANUP_SECONDS = 10.0
#: With `--state`, before that: for the variables of sessions.
SAVE_SECONDS = 30.0
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


def shutdown_seconds(drain_timeout: float, *, saves_state: bool = False) -> float:
    """The longest time from SIGTERM to the exit of a process."""
    saving = SAVE_SECONDS if saves_state else 0.0
    return drain_timeout + LAST_RESPONSE_SECONDS + saving + CLEANUP_SECONDS
