"""The zygote's loop: an order comes with descriptors, a copy of this process goes, and that is all that it ever does.

Guests begin as copies of its memory. So it never sees a guest's output, a report or another caller's path, and it
touches as little of its own memory as it can: every page that it writes to between two forks has to be copied again.
"""

from __future__ import annotations

import gc
import os
import struct
from types import ModuleType

from .. import plan as plans
from ..cell import Shape
from ..failure import CageError
from ..guest import recipe
from ..guest.job import await_job, rehearse
from ..light import partial, read_json, signal, socket
from ..linux import call_list, fds, foreign, namespaces, pages
from ..linux.call_list import CallList, Field, Prepared
from ..linux.syscalls import MACHINE, prctl
from ..records import NamedTuple
from ..wire import FORK_ANSWER, FORK_ORDER, new_inbox, receive_order, send_packet
from .prepare import (
    forget_callers_signals,
    hide_command_line,
    hide_modules,
    load_wasm_worker,
    load_what_many_import,
    load_worker,
)
from .programs import Programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Droppable = Optional[List[Tuple[int, int]]]
    Becoming = Callable[[], Callable[[], None]]
    _AwaitJob = Callable[[int, int], Callable[[], None]]

_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x00200000, 0x01000000
_PR_GET_TID_ADDRESS = 40
_ASTRAY = 70
_MOST_KNOWN = 64
_FEW_BIRTHS, _ENOUGH_REHEARSALS = 4, 10
_MSG_NOSIGNAL = 0x4000

_python = foreign.PyDLL(None)


def serve(channel: socket.socket, order: Dict[str, Any]) -> Becoming:
    """Loads what guests are to find, then makes them until the manager is gone.

    Returns in a guest's process only, with what makes a guest of it, which waits for its job and returns what carries
    that out. By then we are not on its stack: to leave it is to write to, and so to copy, a dozen pages.
    """
    try:
        zygote = _Zygote(channel, order)
    except CageError as failure:
        send_packet(channel, {"failed": [failure.step, failure.errno, failure.what]})
        os._exit(1)
    send_packet(channel, {"ready": True})
    return zygote.run()


class _Birth(NamedTuple):
    """All that an order comes to, laid out before the fork: what is made after it is made by copying pages."""

    number: int
    #: What the new process is to do.
    become: Becoming
    descriptors: List[int]
    fork: Prepared
    #: Where the list has it.
    pid: int
    #: What is left to do here: to come back, to answer, to let go of the descriptors.
    after: Prepared


class _Zygote:
    def __init__(self, channel: socket.socket, order: Dict[str, Any]) -> None:
        self._channel = channel
        self._inbox = (new_inbox(),)
        self._worker: Optional[ModuleType] = None
        self._recipes: Dict[int, recipe.Recipe] = {}
        self._is_caging = order["isolation"] == "namespaces"
        forget_callers_signals()
        if order.get("spares"):
            load_what_many_import()
        if order.get("packages"):
            self._worker = load_wasm_worker(order["worker"], order["packages"], bool(order.get("once")))
        elif order.get("worker"):
            self._worker = load_worker(order["worker"], order.get("site", False), order.get("preload", []))
        hide_command_line()
        call_list.load()
        if not order.get("once"):
            # Whatever is done here, no guest does again, with pages to copy for it.
            self._rehearse()
        if not self._is_caging:
            from ..keeper import start as keeper  # with all that it takes to watch a guest
            from ..watching.patterns import compile_all

            compile_all()
            self._keeper = keeper
        hide_modules()
        self._tells_modules = bool(order.get("site") or order.get("preload") or order.get("packages"))
        self._clone = _clone_arguments()
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        come_back = CallList()
        come_back.part("return to own namespace")
        namespaces.send_children_to(come_back, self._own_pids)
        self._come_back = come_back.prepare(())
        self._programs = Programs(self._is_caging)
        #: By the order and the numbers of its descriptors, which are the same nearly every time.
        self._known: Dict[Tuple[bytes, bytes], _Birth] = {}
        # Frozen objects are not visited by a guest's collector, which would copy every page that it touches.
        if order.get("spares"):
            gc.collect()
        self._file_pages = pages.of_files() if order.get("spares") else []
        gc.freeze()
        gc.enable()

    def run(self) -> Becoming:
        """Most orders are the same as one before, to the byte, descriptors included: those are looked up, not read."""
        known, channel, inbox = self._known, self._channel, self._inbox
        births = 0
        while True:
            order, descriptors = receive_order(channel, inbox)
            birth = known.get((order, descriptors)) or self._read(order, descriptors)
            if birth is None:
                continue
            if self._is_born(birth):
                channel.detach()
                _kept.append((self, birth))
                return birth.become
            if births < _FEW_BIRTHS:
                births += 1
                if births == _FEW_BIRTHS:
                    self._rehearse_for_many()

    def _rehearse_for_many(self) -> None:
        """The interpreter rewrites what it has run a few times for what it does, and so would every guest. That takes
        some milliseconds, which one who has few guests is better off without.
        """
        for _ in range(_ENOUGH_REHEARSALS):
            self._rehearse()
        gc.freeze()

    def _rehearse(self) -> None:
        rehearse()
        if self._worker is not None:
            self._worker.warm_up()

    def _is_born(self, birth: _Birth) -> bool:
        """Forks, by two lists of calls. True in the new process; here the manager has been told."""
        if self._tells_modules:
            _python.PyOS_BeforeFork()
        function, arguments = birth.fork.bound
        is_done = function(*arguments) == birth.fork.length
        pid = birth.fork.values[birth.pid]
        is_born = is_done and pid == 0
        if self._tells_modules:
            (_python.PyOS_AfterFork_Child if is_born else _python.PyOS_AfterFork_Parent)()
        if is_born:
            return True
        if not is_done:
            self._refuse(birth.fork.failure(), birth.descriptors)
            return False
        function, arguments = birth.after.bound
        if function(*arguments) != birth.after.length:
            os._exit(_ASTRAY)  # every later guest would be forked into the wrong namespace, or nobody is there to ask
        return False

    def _refuse(self, error: Optional[CageError], descriptors: List[int]) -> None:
        self._return()
        self._channel.send(FORK_ANSWER.pack(-(error.errno if error and error.errno else 5), False))
        _close(descriptors)

    def _read(self, message: bytes, numbers: bytes) -> Optional[_Birth]:
        """What an order comes to that was not met before, laid out; None: it was a lesson, or has been carried out."""
        if not message:
            os._exit(0)
        # By length, which no lesson has: an order begins with a number, and 123 is a brace.
        if len(message) != FORK_ORDER.size:
            self._learn(read_json(message))
            return None
        number, may_exec, waits, is_program = FORK_ORDER.unpack(message)
        descriptors = list(struct.unpack(f"{len(numbers) // 4}i", numbers))
        try:
            if is_program and self._start_program(number, descriptors):
                _close(descriptors)
                return None
            become = self._becoming(number, may_exec, descriptors, self._file_pages if waits else None)
        except OSError as error:
            self._refuse(CageError("fork guest", error.errno or 0, ""), descriptors)
            return None
        if len(self._known) == _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[message, numbers] = birth = self._birth(number, become, descriptors)
        return birth

    def _becoming(self, number: int, may_exec: bool, descriptors: List[int], droppable: Droppable) -> Becoming:
        wait = partial(await_job, worker=self._worker, droppable=droppable)
        if not self._is_caging:
            return partial(_be_keeper, self._keeper, self._recipes[number], may_exec, descriptors, wait)
        given = recipe.in_order(descriptors)
        # What comes back from its calls only a guest has: they can be laid out for all that will be like this one.
        return partial(_be_guest, self._recipes[number].prepare(given), given, wait)

    def _birth(self, number: int, become: Becoming, descriptors: List[int]) -> _Birth:
        answer = foreign.create_string_buffer(FORK_ANSWER.pack(0, False), FORK_ANSWER.size)
        fork = CallList()
        fork.part("fork guest")
        if self._is_caging:
            namespaces.send_children_to(fork, recipe.in_order(descriptors).init)
        pid = fork.call("clone", *self._clone, into=Field(answer, 0))
        after = CallList()
        after.part("return to own namespace")
        if self._is_caging:
            namespaces.send_children_to(after, self._own_pids)
        after.call("sendto", self._channel.fileno(), answer, FORK_ANSWER.size, _MSG_NOSIGNAL, None, 0)
        fds.close_numbers(after, descriptors)
        return _Birth(number, become, descriptors, fork.prepare(()), pid.place, after.prepare(()))

    def _learn(self, lesson: Dict[str, Any]) -> None:
        if "forget" in lesson:
            self._forget(lesson["forget"])
            return
        attached = tuple((target, is_directory) for target, is_directory in lesson["attached"])
        shape = Shape(plans.decode(lesson["plan"]), lesson["cgroups"], attached, tuple(lesson["files"]))
        self._recipes[lesson["learn"]] = recipe.Recipe(shape, self._programs.room())

    def _forget(self, number: int) -> None:
        self._programs.forget(number)
        for key in [key for key, birth in self._known.items() if birth.number == number]:
            del self._known[key]
        forgotten = self._recipes.pop(number, None)
        if forgotten is not None and forgotten.arena is not None:
            forgotten.arena.close()

    def _start_program(self, number: int, descriptors: List[int]) -> bool:
        """The manager has been told; False: it is to be made as any other."""
        try:
            pid = self._programs.start(number, self._recipes[number], descriptors)
        finally:
            self._return()
        if pid is not None:
            self._channel.send(FORK_ANSWER.pack(pid, True))
        return pid is not None

    def _return(self) -> None:
        try:
            self._come_back.run()
        except CageError:
            os._exit(_ASTRAY)  # every later guest would be forked into the wrong namespace


def _close(descriptors: List[int]) -> None:
    for first, last in fds.ranges_of(descriptors):
        os.closerange(first, last + 1)


#: In a guest: what it has no more use for. Freeing it would write to, and so copy, every page that it lies on.
_kept: List[object] = []


def _be_guest(steps: recipe.Steps, given: recipe.GuestDescriptors, await_job: _AwaitJob) -> Callable[[], None]:
    recipe.lock_in(steps, given.handoff)
    return await_job(given.job, given.go)


def _be_keeper(
    keeper: ModuleType, steps: recipe.Recipe, may_exec: bool, descriptors: List[int], await_job: _AwaitJob
) -> Callable[[], None]:
    given = keeper.KeeperDescriptors._make([*descriptors[:7], tuple(descriptors[7:])])
    keeper.run(steps, may_exec, given)
    return await_job(given.job, given.go)


def _clone_arguments() -> Tuple[int, ...]:
    """For a fork whose parent is the manager, not us.

    Python's own fork makes a new process look into every corner of the interpreter, which costs as much as all the rest
    of a cell. There is nothing to mend there, with one thread and no lock held; but modules may have asked to be told
    of forks, and where any were loaded that we do not know, they are told as Python does it.
    """
    # libc remembers its thread by number, and the kernel can put the new one where it looks.
    place = foreign.c_void_p()
    flags = signal.SIGCHLD | _CLONE_PARENT
    try:
        prctl(_PR_GET_TID_ADDRESS, foreign.addressof(place))
        flags |= _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID
    except OSError:  # a kernel without CONFIG_CHECKPOINT_RESTORE: a guest's abort() is then a plain crash
        pass
    address = place.value or 0
    return (flags, 0, 0, address, 0) if MACHINE == "x86_64" else (flags, 0, 0, 0, address)
