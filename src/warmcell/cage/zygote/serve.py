"""The zygote's loop: an order comes with descriptors, a copy of this process goes, and that is all that it ever does.

Guests begin as copies of its memory. So it never sees a guest's output, a report or another caller's path, and it
touches as little of its own memory as it can: every page that it writes to between two forks has to be copied again.
"""

from __future__ import annotations

import ctypes
import gc
import os
from types import ModuleType

from .. import plan as plans
from ..cell import Shape
from ..failure import CageError
from ..guest import recipe
from ..guest.job import await_job, rehearse
from ..light import partial, read_json, signal, socket
from ..linux import call_list, namespaces, pages
from ..linux.call_list import CallList, Value
from ..linux.owned import close_all
from ..linux.syscalls import MACHINE, prctl
from ..wire import FORK_ANSWER, FORK_ORDER, new_inbox, receive_bytes, send_packet
from .prepare import forget_callers_signals, hide_command_line, hide_modules, load_what_many_import, load_worker
from .programs import Programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Droppable = Optional[List[Tuple[int, int]]]
    _Prepared = Tuple[recipe.Steps, recipe.GuestDescriptors]

_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x00200000, 0x01000000
_PR_GET_TID_ADDRESS = 40
_ASTRAY = 70
_MOST_PREPARED = 64


def serve(channel: socket.socket, order: Dict[str, Any]) -> Callable[[], None]:
    """Loads what guests are to find, then makes them until the manager is gone. Returns in a guest's process only."""
    try:
        zygote = _Zygote(channel, order)
    except CageError as failure:
        send_packet(channel, {"failed": [failure.step, failure.errno, failure.what]})
        os._exit(1)
    send_packet(channel, {"ready": True})
    return zygote.run()


class _Zygote:
    def __init__(self, channel: socket.socket, order: Dict[str, Any]) -> None:
        self._channel = channel
        self._inbox = new_inbox()
        self._worker: Optional[ModuleType] = None
        self._recipes: Dict[int, recipe.Recipe] = {}
        self._is_caging = order["isolation"] == "namespaces"
        forget_callers_signals()
        if order.get("spares"):
            load_what_many_import()
        if order.get("worker"):
            self._worker = load_worker(order["worker"], order.get("site", False), order.get("preload", []))
        hide_command_line()
        call_list.load()
        if not order.get("once"):
            # Whatever is done here, no guest does again, with pages to copy for it.
            rehearse()
            if self._worker is not None:
                self._worker.warm_up()
        if not self._is_caging:
            from ..keeper import start as keeper  # with all that it takes to watch a guest
            from ..watching.patterns import compile_all

            compile_all()
            self._keeper = keeper
        hide_modules()
        self._fork = _Fork(bool(order.get("site") or order.get("preload")), self._is_caging)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        come_back = CallList(1)
        come_back.part("return to own namespace")
        namespaces.send_children_to(come_back, Value(0))
        self._come_back = come_back.prepare([self._own_pids])
        self._programs = Programs(self._is_caging)
        self._prepared: Dict[Tuple[int, ...], _Prepared] = {}
        # Frozen objects are not visited by a guest's collector, which would copy every page that it touches.
        if order.get("spares"):
            gc.collect()
        self._file_pages = pages.of_files() if order.get("spares") else []
        gc.freeze()
        gc.enable()

    def run(self) -> Callable[[], None]:
        while True:
            message, descriptors = receive_bytes(self._channel, inbox=self._inbox)
            if not message:
                os._exit(0)
            # By length, which no lesson has: an order begins with a number, and 123 is a brace.
            if len(message) != FORK_ORDER.size:
                self._learn(read_json(message))
                continue
            number, may_exec, waits, is_program = FORK_ORDER.unpack(message)
            try:
                newborn = None
                if not is_program or not self._start_program(number, descriptors):
                    newborn = self._make(number, may_exec, descriptors)
            except OSError as error:
                self._channel.send(FORK_ANSWER.pack(-(error.errno or 5), False))
                newborn = None
            if newborn is not None:
                self._channel.detach()
                _kept.append((self, descriptors))
                return newborn(self._worker, self._file_pages if waits else None)
            # The kernel gave them the lowest free numbers, one after the other: most often they are neighbours.
            if descriptors[-1] - descriptors[0] == len(descriptors) - 1:
                os.closerange(descriptors[0], descriptors[-1] + 1)
            else:
                close_all(descriptors)

    def _learn(self, lesson: Dict[str, Any]) -> None:
        if "forget" in lesson:
            self._forget(lesson["forget"])
            return
        attached = tuple((target, is_directory) for target, is_directory in lesson["attached"])
        shape = Shape(plans.decode(lesson["plan"]), lesson["cgroups"], attached, tuple(lesson["files"]))
        self._recipes[lesson["learn"]] = recipe.Recipe(shape, self._programs.room())

    def _forget(self, number: int) -> None:
        self._programs.forget(number)
        self._prepared = {key: prepared for key, prepared in self._prepared.items() if key[0] != number}
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

    def _make(self, number: int, may_exec: bool, descriptors: List[int]) -> Optional[Callable[..., Callable[[], None]]]:
        """In the new process: what it is to do. Here None, and the manager has been told."""
        if not self._is_caging:
            pid = self._fork(self._own_pids)
            if pid == 0:
                return partial(_be_keeper, self._keeper, self._recipes[number], may_exec, descriptors)
            self._channel.send(FORK_ANSWER.pack(pid, False))
            return None
        key = (number, *descriptors)
        prepared, given = self._prepared.get(key) or self._prepare(key)
        pid = -1
        try:
            pid = self._fork(given.init)
        finally:
            if pid:
                self._return()
        if pid == 0:
            return partial(_be_guest, prepared, given)
        self._channel.send(FORK_ANSWER.pack(pid, False))
        return None

    def _prepare(self, key: Tuple[int, ...]) -> _Prepared:
        """Before the fork: what is made after it is made by copying pages. Kept, since the next guest's is the same:
        descriptors have the same numbers nearly every time, and what comes back from its calls only a guest has.
        """
        number, *descriptors = key
        given = recipe.in_order(descriptors)
        if len(self._prepared) == _MOST_PREPARED:
            del self._prepared[next(iter(self._prepared))]
        self._prepared[key] = prepared = (self._recipes[number].prepare(given), given)
        return prepared

    def _return(self) -> None:
        try:
            self._come_back.run()
        except CageError:
            os._exit(_ASTRAY)  # every later guest would be forked into the wrong namespace


#: In a guest: what it has no more use for. Freeing it would write to, and so copy, every page that it lies on.
_kept: List[object] = []


def _be_guest(
    steps: recipe.Steps, given: recipe.GuestDescriptors, worker: Optional[ModuleType], droppable: Droppable
) -> Callable[[], None]:
    recipe.lock_in(steps, given.handoff)
    return await_job(given.job, given.go, worker, droppable)


def _be_keeper(
    keeper: ModuleType,
    steps: recipe.Recipe,
    may_exec: bool,
    descriptors: List[int],
    worker: Optional[ModuleType],
    droppable: Droppable,
) -> Callable[[], None]:
    given = keeper.KeeperDescriptors._make([*descriptors[:7], tuple(descriptors[7:])])
    keeper.run(steps, may_exec, given)
    return await_job(given.job, given.go, worker, droppable)


class _Fork:
    """Forks for the manager: the child is its, not ours.

    Python's own fork makes a new process look into every corner of the interpreter, which costs as much as all the rest
    of a cell. There is nothing to mend there, with one thread and no lock held; but modules may have asked to be told
    of forks, and where any were loaded that we do not know, everything is done as Python does it.
    """

    def __init__(self, tells_modules: bool, is_caging: bool) -> None:
        self._tells_modules = tells_modules
        # libc remembers its thread by number, and the kernel can put the new one where it looks.
        place = ctypes.c_void_p()
        flags = signal.SIGCHLD | _CLONE_PARENT
        try:
            prctl(_PR_GET_TID_ADDRESS, ctypes.addressof(place))
            flags |= _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID
        except OSError:  # a kernel without CONFIG_CHECKPOINT_RESTORE: a guest's abort() is then a plain crash
            pass
        address = place.value or 0
        arguments = (flags, 0, 0, address, 0) if MACHINE == "x86_64" else (flags, 0, 0, 0, address)
        calls = CallList(1)
        calls.part("fork guest")
        if is_caging:
            namespaces.send_children_to(calls, Value(0))
        self._pid = calls.call("clone", *arguments)
        self._clone = calls.prepare((-1,))

    def __call__(self, where: int) -> int:
        """As `os.fork`, into the pid namespace of the process that `where` is, if we are caging."""
        self._clone.values[0] = where
        if not self._tells_modules:
            return self._fork()
        ctypes.pythonapi.PyOS_BeforeFork()
        pid = -1
        try:
            pid = self._fork()
        finally:
            (ctypes.pythonapi.PyOS_AfterFork_Parent if pid else ctypes.pythonapi.PyOS_AfterFork_Child)()
        return pid

    def _fork(self) -> int:
        """By a list of one call: what ctypes does around a function of libc writes to a dozen pages more."""
        try:
            self._clone.run()
        except CageError as failure:
            raise OSError(failure.errno, os.strerror(failure.errno)) from None
        return self._clone.result(self._pid)
