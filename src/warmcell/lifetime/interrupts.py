"""Ctrl-C in the middle of a run: the run is cancelled like any other, and then the caller gets its KeyboardInterrupt.

Python raises it between any two steps of the main thread, also between the opening of a descriptor and the moment that
somebody owns it, or with a lock just taken. So while a run goes on, an interrupt is heard and not raised.
"""

from __future__ import annotations

# Not `signal`: what that adds is an enumeration of every answer, which takes longer than all the rest of this.
import _signal  # type: ignore[import-not-found]
import _thread

from warmcell.lifetime.run import Run

#: Who presses it so often does not want to wait for anything.
_INSISTENT = 3


class Interrupts:
    """`with Interrupts(run):` around what a blocking run does. Only where the interpreter's own handler would raise."""

    __slots__ = ("_count", "_is_heard", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._count = 0
        self._is_heard = False

    def __enter__(self) -> None:
        if _signal.getsignal(_signal.SIGINT) is not _signal.default_int_handler:
            return
        try:
            _signal.signal(_signal.SIGINT, self._hear)
            self._is_heard = True
        except ValueError:  # not the main thread: interrupts are not raised here
            return

    def __exit__(self, *_: object) -> None:
        if not self._is_heard:
            return
        if _signal.getsignal(_signal.SIGINT) == self._hear:  # else a guest's callback or the like has its own by now
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        if self._count:
            raise KeyboardInterrupt

    def _hear(self, number: int, frame: object) -> None:
        """In a thread: whatever lock cancelling takes, the main thread may be holding it at this very moment."""
        self._count += 1
        if self._count >= _INSISTENT:
            _signal.default_int_handler(number, None)
        _thread.start_new_thread(self._run.cancel, ())
