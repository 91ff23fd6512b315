"""What the watcher does: looks at running cells when they are due, says what it found, ends who passed a ceiling."""

from __future__ import annotations

import errno
import os
import select
import time

from ..light import signal, socket
from ..linux.owned import close_all
from ..plan import Watch
from ..wire import new_inbox, packets_at, receive_packet, send_packet
from .pauses import pause_before_look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set

    from .ceilings import Ceilings

#: A run that takes longer will be looked at.
_NOT_SHORT_MS = 5
#: Who is to be looked at sooner than that finds it loaded by then.
_LOADS_WITHIN = 0.05
#: For everybody in a cell to be gone after its init was killed.
_LAST_MOMENT_MS = 500
#: Its namespaces are had no more from the moment that it begins to end, which is told when its mounts are taken down.
_OF_WHO_IS_ENDING = (errno.EPERM, errno.ESRCH)
#: There may be much to measure before a guest begins, and others are to be looked at meanwhile.
_MEASURE_AT_A_TIME = 0.02
_MSG_DONTWAIT = 0x40


class _Cell:
    """What is known of one. How to look at it is found out when it is first looked at: most runs end before that."""

    __slots__ = ("_ceilings", "_most_tasks", "answer", "asker", "go", "init", "processes", "scratch", "watch")

    def __init__(
        self, watch: Watch, most_tasks: int, init: int, go: int, processes: int, scratch: int, asker: int = -1
    ) -> None:
        self.watch, self._most_tasks = watch, most_tasks
        self.init, self.go, self.processes, self.scratch = init, go, processes, scratch
        #: Who holds the guest back until what is there has been measured, and what it is told then.
        self.asker = packets_at(asker) if asker >= 0 else None
        self.answer: Dict[str, Any] = {}
        self._ceilings: Optional[Ceilings] = None

    @property
    def ceilings(self) -> Ceilings:
        if self._ceilings is None:
            from .looking import ceilings_of

            self._ceilings = ceilings_of(self.watch, self._most_tasks, self.init, self.processes, self.scratch)
        return self._ceilings

    @property
    def is_measured(self) -> bool:
        return not self.watch.disk_bytes or self.ceilings.is_measured

    def begin(self) -> float:
        """When its guest's code begins; returns how long it is safe not to look."""
        return self.ceilings.begin() if self.watch.disk_bytes else pause_before_look(self.watch)

    def tell_measured(self) -> None:
        """A cell of whose measure nobody hears will never begin: the error ends it."""
        if self.asker is not None:
            send_packet(self.asker, self.answer, flags=_MSG_DONTWAIT)
            self.asker.close()
            self.asker = None

    def close(self) -> None:
        if self.asker is not None:
            self.asker.close()
        if self._ceilings is not None:
            self._ceilings.close()
        close_all([self.init, self.processes, self.scratch])


class Loop:
    """Sleeps while no cell runs."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._inbox = new_inbox()
        self._cells: Dict[int, _Cell] = {}
        #: By descriptor: the cells that have not begun, and those whose measure has not been asked for.
        self._waiting: Dict[int, int] = {}
        self._askers: Dict[int, int] = {}
        #: When each running cell is to be looked at, or measured, and which of them have been looked at.
        self._due: Dict[int, float] = {}
        self._looked_at: Set[int] = set()
        self._is_prepared = False
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)

    def run(self) -> None:
        """Until the manager is gone."""
        while True:
            ready = dict(self._poll.poll(self._pause_ms()))
            now = time.monotonic()
            due = [number for number, due in self._due.items() if due <= now]
            if not ready and not due and not self._is_prepared:
                self._prepare()
            # Looks come first: no number of messages may put them off.
            for number in due:
                self._attend(number)
            for descriptor in ready.keys() & self._askers.keys():
                self._hear_asker(descriptor)
            for descriptor in ready.keys() & self._waiting.keys():
                self._begin(descriptor)
            if self._channel.fileno() in ready and not self._hear():
                return

    def _prepare(self) -> None:
        from .looking import compile_all

        compile_all()
        self._is_prepared = True

    def _pause_ms(self) -> Optional[float]:
        if not self._due:
            return None
        pause = max(0.0, min(self._due.values()) - time.monotonic()) * 1000
        return pause if self._is_prepared else min(pause, _NOT_SHORT_MS)

    def _hear(self) -> bool:
        message, descriptors = receive_packet(self._channel, inbox=self._inbox)
        if not message:
            return False
        for number in message.get("ended", ()):
            self._end(number, tells=False)
        if "watch" in message:
            self._add(message, descriptors)
        elif "shared" in message:
            if message["shared"] in self._cells:
                self._cells[message["shared"]].ceilings.mappings.asked_for(message["length"])
        elif "end" in message:
            self._end(message["end"], tells=True)
        return True

    def _add(self, order: Dict[str, Any], descriptors: List[int]) -> None:
        number = order["watch"]
        cell = self._cells[number] = _Cell(Watch(*order["ceilings"]), order["most_tasks"], *descriptors)
        self._waiting[cell.go] = number
        self._poll.register(cell.go, select.POLLIN)
        if cell.asker is not None:
            cell.answer = order["answer"]
            self._askers[cell.asker.fileno()] = number
            self._poll.register(cell.asker, select.POLLIN)
        if not self._is_prepared and pause_before_look(cell.watch) < _LOADS_WITHIN:
            self._prepare()

    def _hear_asker(self, descriptor: int) -> None:
        """It asks when it has a job for the guest. Who lets go instead says nothing."""
        number = self._askers[descriptor]
        asker = self._cells[number].asker
        assert asker is not None
        self._expect_no_question(self._cells[number])
        try:
            has_asked = bool(receive_packet(asker, inbox=self._inbox)[0])
        except OSError:
            has_asked = True  # it may wait for an answer, and whatever it said was nothing else
        if has_asked:
            self._due[number] = time.monotonic()

    def _expect_no_question(self, cell: _Cell) -> None:
        if cell.asker is not None and self._askers.pop(cell.asker.fileno(), None) is not None:
            self._poll.unregister(cell.asker)

    def _begin(self, go: int) -> None:
        """Or it has begun long ago, and was shown directories that nobody has measured yet."""
        number = self._waiting.pop(go)
        self._poll.unregister(go)
        os.close(go)
        cell = self._cells[number]
        self._due[number] = time.monotonic() + (cell.begin() if cell.is_measured else 0.0)

    def _attend(self, number: int) -> None:
        cell = self._cells[number]
        pause: Optional[float] = None
        try:
            pause = self._look(number) if cell.is_measured else self._measure(number)
        except OSError as error:
            # One that ends by itself, in the middle of the look, is for whoever reaps it to tell of.
            if not _has_ended(cell.init, _LAST_MOMENT_MS if error.errno in _OF_WHO_IS_ENDING else 0):
                cell.ceilings.verdict = "blind"  # what cannot be looked at is not kept
        if cell.ceilings.verdict:
            self._end_by_verdict(number)
        elif pause is None:
            del self._due[number]
        else:
            self._due[number] = time.monotonic() + pause

    def _look(self, number: int) -> float:
        if number not in self._looked_at:
            self._looked_at.add(number)
            self._say({"looks": number})
        return self._cells[number].ceilings.look()

    def _measure(self, number: int) -> Optional[float]:
        """A part of it. Then whoever has waited for that is told; None: the guest will begin when it has its job."""
        cell = self._cells[number]
        if not cell.ceilings.measure(_MEASURE_AT_A_TIME):
            return 0.0
        self._expect_no_question(cell)
        cell.tell_measured()
        return cell.begin() if self._waiting.get(cell.go) != number else None

    def _end_by_verdict(self, number: int) -> None:
        self._tell(number)
        try:
            signal.pidfd_send_signal(self._cells[number].init, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._forget(number)

    def _end(self, number: int, tells: bool) -> None:
        if number not in self._cells:
            return  # the verdict is on its way
        if tells:
            _has_ended(self._cells[number].init, _LAST_MOMENT_MS)
            self._cells[number].ceilings.last_look()
            self._tell(number)
        self._forget(number)

    def _tell(self, number: int) -> None:
        ceilings = self._cells[number].ceilings
        told = {"reason": ceilings.verdict, "peak": ceilings.peak, "lost": round(ceilings.cpu_lost, 6)}
        self._say({"end": number, **told, "met": sorted(ceilings.met)})

    def _say(self, message: Dict[str, Any]) -> None:
        try:
            send_packet(self._channel, message)
        except OSError:
            os._exit(0)

    def _forget(self, number: int) -> None:
        cell = self._cells.pop(number)
        self._looked_at.discard(number)
        self._due.pop(number, None)
        # One that has begun has closed its descriptor, and another's may have that number now: that one is waited for.
        if self._waiting.get(cell.go) == number:
            del self._waiting[cell.go]
            self._poll.unregister(cell.go)
            os.close(cell.go)
        self._expect_no_question(cell)
        cell.close()


def _has_ended(process: int, patience_ms: int = 0) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(patience_ms))
