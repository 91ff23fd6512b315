"""What one exchange with a session's worker is made of: the worker, who listens, and how far it has come."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Protocol

from warmcell.core.records import dataclass
from warmcell.sessions.cell_events import Done
from warmcell.sessions.cell_record import CellRecord
from warmcell.sessions.cell_results import DisplayData


class Worker(Protocol):
    """The process that holds a session's interpreter, as whoever started it shows it. Methods are for any thread."""

    control: socket.socket
    stdout: int
    stderr: int
    #: Where its image comes from, for a session that can be forked.
    image: int | None

    def interrupt(self) -> None:
        """SIGINT."""

    def kill(self) -> None:
        """Ends it and all that it started. Once it has ended, nothing happens."""

    def reason(self) -> str:
        """How it ended, asked once its control socket is closed."""
        ...

    def close(self) -> None:
        """Ends it and closes its descriptors. The last thing that is called."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Called in the thread that carries the cell out, one at a time. One that raises ends the cell."""

    on_stdout: Callable[[str], object] | None = None
    on_stderr: Callable[[str], object] | None = None
    on_display: Callable[[DisplayData], object] | None = None
    on_input: Callable[[str], object] | None = None


#: Who asks for nothing is this one.
NOBODY = Listeners()


class Exchange:
    """One exchange under way: a cell, or a look at the variables."""

    #: Why it was interrupted, if it was: "timeout", "cancelled", "asked", or "callback".
    cause = ""
    is_killed = False
    failure: BaseException | None = None
    done: Done | None = None

    def __init__(self, number: int, timeout: float, listeners: Listeners, most_bytes: int) -> None:
        self.number, self.timeout, self.listeners = number, timeout, listeners
        self.record = CellRecord(most_bytes)
        self.began = time.monotonic()
        #: When it is next too late: for the cell, for its end after an interrupt, for its worker's end after a kill.
        self.deadline = self.began + timeout

    @property
    def duration(self) -> float:
        return time.monotonic() - self.began
