"""The watcher's loop: measures running cells when they are due, and reports and kills those that exceed a ceiling."""

from __future__ import annotations

import errno
import os
import select
import time

from ..fast_imports import signal, socket
from ..linux import kernel_files
from ..linux.descriptors import close_all
from ..linux.guest_files import TimeLimit
from ..plan import Watch
from ..wire import new_receive_buffer, packet_socket, receive_packet, send_packet
from .patience import pause_before_first_look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set

    from .ceilings import Ceilings

#: A longer run will be measured, so the required modules are loaded.
_NOT_SHORT_MS = 5
#: If the first look is due sooner than this, they are loaded at once.
_LOADS_WITHIN = 0.05
#: The most messages of the manager that are read between looks.
_MOST_AT_A_TIME = 32
#: How long the processes of a cell may take to exit after its init was killed.
_LAST_MOMENT_SECONDS = 0.5
#: An exiting process loses its namespaces before its exit is visible, while its mounts are removed.
_ERRORS_WHILE_ENDING = (errno.EPERM, errno.ESRCH)
#: The pause before a look at such a cell is repeated; and later, while its processes free their memory.
_SHORT_PAUSE, _LATER_PAUSE = 0.005, 0.05
#: A process that has begun to exit, in the flags of its `stat`.
_PF_EXITING = 0x4
#: Seconds per step: measuring existing files may take long, and other cells must be measured meanwhile.
_MEASURE_AT_A_TIME = 0.02
_MSG_DONTWAIT = 0x40


class _Cell:
    """One cell. Its ceilings are created at the first look: most runs end before that."""

    __slots__ = (
        "_ceilings",
        "_most_tasks",
        "answer",
        "asker",
        "ends_until",
        "go",
        "init",
        "is_blind",
        "is_early",
        "is_requested",
        "processes",
        "scratch",
        "watch",
    )

    def __init__(
        self, watch: Watch, most_tasks: int, init: int, go: int, processes: int, scratch: int, asker: int = -1
    ) -> None:
        self.watch, self._most_tasks = watch, most_tasks
        self.init, self.go, self.processes, self.scratch = init, go, processes, scratch
        #: The channel that waits until the disk is measured, and the answer to send then.
        self.asker = packet_socket(asker) if asker >= 0 else None
        self.answer: Dict[str, Any] = {}
        #: Whether it is looked at before `go` is closed: a program that is not ours has that descriptor. Then its disk
        #: is measured again when the measurement is requested: what the host wrote before that does not count.
        self.is_early = False
        self.is_requested = False
        #: Whether a look at it has failed: a cell that cannot be measured must not run.
        self.is_blind = False
        #: When it must have ended, if it seems to be ending.
        self.ends_until: Optional[float] = None
        self._ceilings: Optional[Ceilings] = None

    @property
    def ceilings(self) -> Ceilings:
        if self._ceilings is None:
            from .ceilings import make_ceilings

            self._ceilings = make_ceilings(self.watch, self._most_tasks, self.init, self.processes, self.scratch)
        return self._ceilings

    @property
    def is_measured(self) -> bool:
        return not self.watch.disk_bytes or self.ceilings.is_measured

    def begin(self) -> float:
        """Call it when the guest's code starts. Returns the pause before the first look."""
        return self.ceilings.begin() if self.watch.disk_bytes else pause_before_first_look(self.watch)

    def request_measurement(self) -> None:
        self.is_requested = True
        if self._ceilings is not None:
            self._ceilings.measure_again()

    def answer_measured(self) -> None:
        """Send the answer. Without it the guest would never start, so an error ends the cell."""
        if self.asker is not None:
            send_packet(self.asker, self.answer, flags=_MSG_DONTWAIT)
            self.asker.close()
            self.asker = None

    def may_be_ending(self) -> bool:
        """Whether its init still runs and has time left to end. The time begins with the first call."""
        now = time.monotonic()
        if self.ends_until is None:
            self.ends_until = now + _LAST_MOMENT_SECONDS
        return now < self.ends_until and not self.has_ended()

    def is_being_killed(self) -> bool:
        """Whether its init has begun to exit. The kernel then kills all its processes, and init waits for them.

        They need a processor to exit, so that may take seconds.
        """
        try:
            text = kernel_files.read_short(f"/proc/self/fd/{self.processes}/1/stat")
            return bool(int(text.rpartition(")")[2].split()[6]) & _PF_EXITING)
        except (OSError, ValueError, IndexError):
            return False

    def has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self.init, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def verdict(self) -> str:
        if self.is_blind:
            return "blind"
        return "" if self._ceilings is None else self._ceilings.verdict

    def report(self) -> Dict[str, Any]:
        """The verdict and the figures, without any if not even its ceilings could be made."""
        found = self._ceilings
        if found is None:
            return {"reason": self.verdict, "peak": 0, "lost": 0.0, "files": 0, "met": []}
        gpu = {} if found.gpu is None else {"gpu": [found.gpu.peak, round(found.gpu.seconds, 6)]}
        figures = {"peak": found.peak, "lost": round(found.cpu_lost, 6), "files": found.mapped_files}
        return {"reason": self.verdict, **figures, **gpu, "met": sorted(found.met)}

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
        self._inbox = new_receive_buffer()
        self._cells: Dict[int, _Cell] = {}
        #: By descriptor: cells that have not started, and cells whose disk is to be measured on request.
        self._waiting: Dict[int, int] = {}
        self._askers: Dict[int, int] = {}
        #: When each running cell is due for a look or a measurement; and which have been looked at.
        self._due: Dict[int, float] = {}
        self._looked_at: Set[int] = set()
        #: Ended cells whose disk is measured for the last time, after their processes have exited.
        self._ending: Set[int] = set()
        self._is_prepared = False
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._messages = select.poll()
        self._messages.register(channel, select.POLLIN)

    def run(self) -> None:
        """Run until the manager exits."""
        while True:
            ready = dict(self._poll.poll(self._pause_ms()))
            now = time.monotonic()
            ended = {number for number in self._ending if self._cells[number].init in ready}
            due = [number for number, due in self._due.items() if due <= now or number in ended]
            if not ready and not due and not self._is_prepared:
                self._prepare()
            # Looks come first, so that messages cannot delay them.
            for number in due:
                self._check_cell(number)
            for descriptor in ready.keys() & self._askers.keys():
                self._read_request(descriptor)
            for descriptor in ready.keys() & self._waiting.keys():
                self._begin(descriptor)
            if self._channel.fileno() in ready and not self._read_messages():
                return

    def _prepare(self) -> None:
        from .ceilings import compile_all

        compile_all()
        self._is_prepared = True

    def _pause_ms(self) -> Optional[float]:
        if not self._due:
            return None
        pause = max(0.0, min(self._due.values()) - time.monotonic()) * 1000
        return pause if self._is_prepared else min(pause, _NOT_SHORT_MS)

    def _read_messages(self) -> bool:
        """Read several messages, which may arrive during long looks. False if the manager has exited."""
        for _ in range(_MOST_AT_A_TIME):
            if not self._read_message():
                return False
            if not self._messages.poll(0):
                break
        return True

    def _read_message(self) -> bool:
        message, descriptors = receive_packet(self._channel, inbox=self._inbox)
        if not message:
            return False
        for number in message.get("ended", ()):
            self._end(number, reports=False)
        if "watch" in message:
            self._add(message, descriptors)
        elif "shared" in message:
            if message["shared"] in self._cells:
                self._cells[message["shared"]].ceilings.mappings.note_shared_memory(message["length"])
        elif "end" in message:
            self._end(message["end"], reports=True)
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
        if not self._is_prepared and pause_before_first_look(cell.watch) < _LOADS_WITHIN:
            self._prepare()
        if cell.watch.gpus:
            cell.ceilings  # noqa: B018  # load the driver's library now, while the guest waits
        cell.is_early = order.get("is_early", False)
        if cell.is_early:
            self._due[number] = time.monotonic() + pause_before_first_look(cell.watch)

    def _read_request(self, descriptor: int) -> None:
        """The supervisor requests a measurement when it has a job for the guest, or closes the channel."""
        number = self._askers[descriptor]
        asker = self._cells[number].asker
        assert asker is not None
        self._ignore_requests(self._cells[number])
        try:
            has_asked = bool(receive_packet(asker, inbox=self._inbox)[0])
        except OSError:
            has_asked = True  # it may wait for an answer
        if has_asked:
            self._cells[number].request_measurement()
            self._due[number] = time.monotonic()

    def _ignore_requests(self, cell: _Cell) -> None:
        if cell.asker is not None and self._askers.pop(cell.asker.fileno(), None) is not None:
            self._poll.unregister(cell.asker)

    def _begin(self, go: int) -> None:
        """The guest started, or it is running and was given directories that are not measured yet."""
        number = self._waiting.pop(go)
        self._poll.unregister(go)
        os.close(go)
        cell = self._cells[number]
        if not cell.is_measured:
            cell.is_requested = True
        self._due[number] = time.monotonic() + (cell.begin() if cell.is_measured else 0.0)

    def _check_cell(self, number: int) -> None:
        if number in self._ending:
            self._look_at_end(number)
            return
        cell = self._cells[number]
        pause: Optional[float] = None
        try:
            pause = self._check(number)
            cell.ends_until = None
        except OSError as error:
            # A cell that ends during a look is reported when it is reaped.
            if error.errno in _ERRORS_WHILE_ENDING and cell.may_be_ending():
                pause = _SHORT_PAUSE
            elif not cell.has_ended():
                if error.errno in _ERRORS_WHILE_ENDING and cell.is_being_killed():
                    pause = _LATER_PAUSE
                else:
                    cell.is_blind = not cell.has_ended()
        except Exception:  # what one guest names must not end the watch over all others
            cell.is_blind = True
        if cell.verdict:
            self._end_by_verdict(number)
        elif pause is None:
            del self._due[number]
        else:
            self._due[number] = time.monotonic() + pause

    def _check(self, number: int) -> Optional[float]:
        cell = self._cells[number]
        if cell.is_measured:
            return self._look(number)
        if cell.is_early:  # its memory counts while its disk is measured
            self._look(number)
        return self._measure(number)

    def _look(self, number: int) -> float:
        if number not in self._looked_at:
            self._looked_at.add(number)
            self._send({"looks": number})
        with TimeLimit():
            return self._cells[number].ceilings.look()

    def _measure(self, number: int) -> Optional[float]:
        """One step of the measurement. None when it is complete and our code still waits for the job."""
        cell = self._cells[number]
        if not cell.ceilings.measure(_MEASURE_AT_A_TIME):
            return 0.0
        if cell.is_early and not cell.is_requested:
            return cell.begin()
        self._ignore_requests(cell)
        cell.answer_measured()
        return None if self._waiting.get(cell.go) == number and not cell.is_early else cell.begin()

    def _end_by_verdict(self, number: int) -> None:
        self._report(number)
        try:
            signal.pidfd_send_signal(self._cells[number].init, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._forget(number)

    def _end(self, number: int, reports: bool) -> None:
        if number not in self._cells:
            return  # the verdict has been sent
        if not reports:
            self._forget(number)
            return
        cell = self._cells[number]
        cell.ends_until = None
        self._ending.add(number)
        self._poll.register(cell.init, select.POLLIN)
        self._look_at_end(number)

    def _look_at_end(self, number: int) -> None:
        """One step of the last look, then the report. Other cells are looked at between two steps."""
        cell = self._cells[number]
        if cell.watch.disk_bytes and cell.may_be_ending():
            assert cell.ends_until is not None
            self._due[number] = cell.ends_until
            return
        is_complete = True
        try:
            is_complete = cell.ceilings.look_at_end(_MEASURE_AT_A_TIME)
        except Exception:  # as of a file system without a server: it must not end the watch over all others
            pass
        if is_complete:
            self._report(number)
            self._forget(number)
        else:
            self._due[number] = 0.0

    def _report(self, number: int) -> None:
        self._send({"end": number, **self._cells[number].report()})

    def _send(self, message: Dict[str, Any]) -> None:
        try:
            send_packet(self._channel, message)
        except OSError:
            os._exit(0)

    def _forget(self, number: int) -> None:
        cell = self._cells.pop(number)
        self._looked_at.discard(number)
        self._due.pop(number, None)
        if number in self._ending:
            self._ending.discard(number)
            self._poll.unregister(cell.init)
        # After the start `go` is closed, and another cell's descriptor may have that number.
        if self._waiting.get(cell.go) == number:
            del self._waiting[cell.go]
            self._poll.unregister(cell.go)
            os.close(cell.go)
        self._ignore_requests(cell)
        cell.close()
