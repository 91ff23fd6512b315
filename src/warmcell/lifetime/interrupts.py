"""Ctrl-C during a run: the run is cancelled like any other, then the caller gets its KeyboardInterrupt.

Python raises it between any two bytecodes of the main thread, also between opening a descriptor and owning it, or with
a lock held. So during a run the interrupt is noted and not raised.
"""

from __future__ import annotations

# Not `signal`, which also builds enumerations and takes longer to load than the rest of this module.
import _signal  # type: ignore[import-not-found]
import _thread

from warmcell.lifetime.run import Run

#: After this many the interrupt is raised at once.
_INSISTENT = 3


class Interrupts:
    """`with Interrupts(run):` around a blocking run. Only where the interpreter's own handler would raise."""

    __slots__ = ("_count", "_is_installed", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._count = 0
        self._is_installed = False

    def __enter__(self) -> None:
        if _signal.getsignal(_signal.SIGINT) is not _signal.default_int_handler:
            return
        try:
            _signal.signal(_signal.SIGINT, self._handle_signal)
            self._is_installed = True
        except ValueError:  # not the main thread: interrupts are not raised here
            return

    def __exit__(self, *_: object) -> None:
        if not self._is_installed:
            return
        if _signal.getsignal(_signal.SIGINT) == self._handle_signal:  # a callback may have installed its own meanwhile
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        if self._count:
            raise KeyboardInterrupt

    def _handle_signal(self, number: int, frame: object) -> None:
        """Cancels in a thread: the main thread may hold the lock that cancelling takes."""
        self._count += 1
        if self._count >= _INSISTENT:
            _signal.default_int_handler(number, None)
        _thread.start_new_thread(self._run.cancel, ())
