"""The zygote's loop: forks a guest for every order.

Guests start as copies of its memory. So it never receives a guest's output, a report or another caller's path, and it
touches as little of its own memory as possible: every page that it writes to between two forks must be copied again.
"""

from __future__ import annotations

import gc
import os
import struct
import sys
from types import ModuleType

from .. import plan as plans
from ..cell_shape import CellShape
from ..failure import CageError
from ..fast_imports import partial, read_json, signal, socket
from ..guest_entry import job, recipe
from ..guest_entry.job import await_job, rehearse
from ..linux import fast_ctypes, fds, namespaces
from ..linux.call_list import CallList, Field, PreparedCalls
from ..linux.syscalls import MACHINE, call, prctl
from ..records import NamedTuple
from ..wire import FORK_ANSWER, FORK_ORDER, new_receive_buffer, receive_order, send_packet
from .prepare import hide_command_line, hide_modules, load_common_modules, load_wasm_worker, load_worker, reset_signals
from .program_starter import ProgramStarter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from .live_modules import LiveModules

    Droppable = Optional[List[Tuple[int, int]]]
    GuestMain = Callable[[], Callable[[], None]]
    _AwaitJob = Callable[[int, int], Callable[[], None]]

_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x00200000, 0x01000000
_PR_GET_TID_ADDRESS = 40
_MOST_PREPARED = 64
_FEW_FORKS, _ENOUGH_REHEARSALS = 4, 10
#: For the first live cage no modules are preloaded: loading takes as long as it saves.
_FEW_LIVE_CAGES = 1
_MSG_NOSIGNAL = 0x4000

_python = fast_ctypes.PyDLL(None)


def serve(channel: socket.socket, order: Dict[str, Any]) -> GuestMain:
    """Load the modules of guests, then fork guests until the manager exits.

    Returns only in a guest's process, with a function that builds its cage, waits for its job and returns the function
    that runs the job. This frame leaves the stack first: returning later would write to, and so copy, a dozen pages.
    """
    try:
        zygote = _Zygote(channel, order)
    except CageError as failure:
        send_packet(channel, {"failed": [failure.step, failure.errno, failure.what]})
        os._exit(1)
    send_packet(channel, {"ready": True})
    return zygote.run()


class _PreparedFork(NamedTuple):
    """An order, prepared before the fork: objects that the guest creates cost copied pages."""

    number: int
    #: The function of the new process.
    become: GuestMain
    descriptors: List[int]
    fork: PreparedCalls
    #: The index of the new pid in the list's values.
    pid: int
    #: The calls of the zygote after the fork: return to its own namespace, answer, and close the descriptors.
    after: PreparedCalls


class _Zygote:
    def __init__(self, channel: socket.socket, order: Dict[str, Any]) -> None:
        self._channel = channel
        self._inbox = (new_receive_buffer(),)
        self._worker: Optional[ModuleType] = None
        self._recipes: Dict[int, recipe.Recipe] = {}
        self._load_live_modules: Callable[[], Optional[LiveModules]] = lambda: None
        if not order.get("once"):
            from . import live_modules

            live_directory = order.get("worker", "").rpartition("/")[0] + "/live"
            self._load_live_modules = partial(
                live_modules.load, live_directory, live_modules.find_version(live_directory)
            )
        #: None until there have been a few live cages, or if they cannot be loaded.
        self._live_modules: Optional[LiveModules] = None
        self._live_cages = 0
        self._is_caging = order["isolation"] == "namespaces"
        reset_signals()
        keeps_spares = bool(order.get("spares"))
        #: Whether common modules will be loaded after the first guest, which does not wait for them.
        self._loads_later = keeps_spares and not (order.get("packages") or order.get("preload") or order.get("site"))
        if keeps_spares and not self._loads_later:
            load_common_modules()
        if order.get("packages"):
            self._worker = load_wasm_worker(order["worker"], order["packages"], bool(order.get("once")))
        elif order.get("worker"):
            self._worker = load_worker(order["worker"], order.get("site", False), order.get("preload", []))
        hide_command_line()
        if not order.get("once"):
            # Now, so that guests need not repeat it on copied pages.
            self._rehearse()
        if not self._is_caging:
            from .. import keeper  # with the modules that watch a guest
            from ..watching.patterns import compile_all

            compile_all()
            self._keeper = keeper
        hide_modules()
        self._runs_fork_hooks = bool(order.get("site") or order.get("preload") or order.get("packages"))
        self._clone = _clone_arguments()
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        come_back = CallList()
        come_back.begin_step("return to own namespace")
        namespaces.send_children_to(come_back, self._own_pids)
        self._come_back = come_back.prepare(())
        self._programs = ProgramStarter(self._is_caging)
        #: By the order and the numbers of its descriptors, which rarely change.
        self._prepared: Dict[Tuple[bytes, bytes], _PreparedFork] = {}
        self._file_pages: List[Tuple[int, int]] = []
        if keeps_spares and not self._loads_later:
            self._tidy_memory()
        gc.freeze()
        gc.enable()

    def _tidy_memory(self) -> None:
        gc.collect()
        self._file_pages += job.find_file_pages()
        # A guest's garbage collector skips frozen objects; visiting them would copy their pages.
        gc.freeze()

    def _load_later(self) -> None:
        self._loads_later = False
        try:
            load_common_modules()
        except Exception:  # guests load them on demand
            return
        if self._worker is not None:
            self._worker.note_libraries()
        self._tidy_memory()

    def run(self) -> GuestMain:
        """Fork a guest for each order. Most equal an earlier one, including descriptor numbers, and are looked up."""
        prepared, channel, inbox = self._prepared, self._channel, self._inbox
        forks = 0
        while True:
            order, descriptors = receive_order(channel, inbox)
            fork = prepared.get((order, descriptors)) or self._prepare_order(order, descriptors)
            if fork is None:
                continue
            if self._fork(fork):
                channel.detach()
                _kept.append((self, fork))
                return fork.become
            if self._loads_later:
                self._load_later()
            if forks < _FEW_FORKS:
                forks += 1
                if forks == _FEW_FORKS:
                    self._rehearse_for_many()

    def _rehearse_for_many(self) -> None:
        """The interpreter specialises code that has run a few times; without rehearsal every guest would do that again.
        It takes some milliseconds, so a zygote with few guests skips it.
        """
        for _ in range(_ENOUGH_REHEARSALS):
            self._rehearse()
        gc.freeze()

    def _count_live_cage(self) -> None:
        self._live_cages += 1
        if self._live_cages == _FEW_LIVE_CAGES + 1:
            self._live_modules = self._load_live_modules()
            gc.freeze()

    def _rehearse(self) -> None:
        rehearse()
        if self._worker is not None:
            self._worker.warm_up()

    def _fork(self, fork: _PreparedFork) -> bool:
        """Fork by two call lists. Returns True in the new process; here, the manager has been answered."""
        if self._runs_fork_hooks:
            _python.PyOS_BeforeFork()
        function, arguments = fork.fork.bound
        is_done = function(*arguments) == fork.fork.length
        pid = fork.fork.values[fork.pid]
        is_child = is_done and pid == 0
        if self._runs_fork_hooks:
            (_python.PyOS_AfterFork_Child if is_child else _python.PyOS_AfterFork_Parent)()
        if is_child:
            return True
        if not is_done:
            self._refuse(fork.fork.failure(), fork.descriptors)
            return False
        function, arguments = fork.after.bound
        if function(*arguments) != fork.after.length:
            os._exit(namespaces.ASTRAY)  # later guests would be forked into the wrong namespace, or the manager is gone
        return False

    def _refuse(self, error: Optional[CageError], descriptors: List[int]) -> None:
        self._return()
        self._channel.send(FORK_ANSWER.pack(-(error.errno if error and error.errno else 5), False, False))
        _close(descriptors)

    def _prepare_order(self, message: bytes, numbers: bytes) -> Optional[_PreparedFork]:
        """Prepare a new order. None if the message was not an order, or the order has been completed."""
        if not message:
            os._exit(0)
        # By length: an order may begin with the byte of a brace too.
        if len(message) != FORK_ORDER.size:
            self._handle_message(read_json(message), numbers)
            return None
        number, may_exec, waits, is_program = FORK_ORDER.unpack(message)
        descriptors = list(struct.unpack(f"{len(numbers) // 4}i", numbers))
        try:
            if is_program and self._start_as_executable(number, descriptors):
                _close(descriptors)
                return None
            is_live = self._recipes[number].plan.terminals
            if is_live:
                self._count_live_cage()
            become = self._guest_main(number, may_exec, descriptors, self._file_pages if waits else None)
        except OSError as error:
            self._refuse(CageError("fork guest", error.errno or 0, ""), descriptors)
            return None
        fork = self._prepare_fork(number, become, descriptors)
        if not is_live or self._live_cages > _FEW_LIVE_CAGES:  # before that, each must be counted
            if len(self._prepared) == _MOST_PREPARED:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[message, numbers] = fork
        return fork

    def _guest_main(self, number: int, may_exec: bool, descriptors: List[int], droppable: Droppable) -> GuestMain:
        wait = partial(await_job, worker=self._worker, droppable=droppable)
        if not self._is_caging:
            return partial(_run_keeper, self._keeper, self._recipes[number], may_exec, descriptors, wait)
        given = recipe.from_order(descriptors)
        # Each guest writes the results to its own copy of the memory, so that equal orders can share the list.
        become = partial(_run_guest, self._recipes[number].prepare(given), given, wait)
        loaded = self._live_modules if self._recipes[number].plan.terminals else None
        return become if loaded is None else partial(_run_agent, become, loaded)

    def _prepare_fork(self, number: int, become: GuestMain, descriptors: List[int]) -> _PreparedFork:
        has_modules = self._recipes[number].plan.terminals and self._live_modules is not None
        answer = fast_ctypes.create_string_buffer(FORK_ANSWER.pack(0, False, has_modules), FORK_ANSWER.size)
        fork = CallList()
        fork.begin_step("fork guest")
        if self._is_caging:
            namespaces.send_children_to(fork, recipe.from_order(descriptors).init)
        pid = fork.call("clone", *self._clone, into=Field(answer, 0))
        after = CallList()
        after.begin_step("return to own namespace")
        if self._is_caging:
            namespaces.send_children_to(after, self._own_pids)
        after.call("sendto", self._channel.fileno(), answer, FORK_ANSWER.size, _MSG_NOSIGNAL, None, 0)
        fds.close_numbers(after, descriptors)
        return _PreparedFork(number, become, descriptors, fork.prepare(()), pid.place, after.prepare(()))

    def _handle_message(self, message: Dict[str, Any], descriptors: bytes) -> None:
        if "forget" in message:
            self._forget(message["forget"])
            return
        if "twin" in message:
            self._fork_twin(*struct.unpack("i", descriptors))
            return
        attached = tuple((target, is_directory) for target, is_directory in message["attached"])
        shape = CellShape(plans.decode(message["plan"]), message["cgroups"], attached, tuple(message["files"]))
        self._recipes[message["learn"]] = recipe.Recipe(shape, self._programs.reserve_arena())

    def _forget(self, number: int) -> None:
        self._programs.forget(number)
        for key in [key for key, fork in self._prepared.items() if fork.number == number]:
            del self._prepared[key]
        forgotten = self._recipes.pop(number, None)
        if forgotten is not None and forgotten.arena is not None:
            forgotten.arena.close()

    def _fork_twin(self, channel: int) -> None:
        """Fork a zygote with the same recipes that receives its orders from `channel`. It is a child of the manager.

        If that fails, the error is the answer to its first order.
        """
        if self._runs_fork_hooks:
            _python.PyOS_BeforeFork()
        try:
            pid = call("clone", *self._clone)
        except OSError as error:
            pid = -(error.errno or 5)
        if self._runs_fork_hooks:
            (_python.PyOS_AfterFork_Child if pid == 0 else _python.PyOS_AfterFork_Parent)()
        if pid == 0:
            # With the same number, which is part of the prepared lists.
            os.dup2(channel, self._channel.fileno(), inheritable=False)
        elif pid < 0:
            os.write(channel, FORK_ANSWER.pack(pid, False, False))
        os.close(channel)

    def _start_as_executable(self, number: int, descriptors: List[int]) -> bool:
        """Start a guest without a fork, and answer the manager. False if it must be forked as usual."""
        try:
            pid = self._programs.start(number, self._recipes[number], descriptors)
        finally:
            self._return()
        if pid is not None:
            self._channel.send(FORK_ANSWER.pack(pid, True, False))
        return pid is not None

    def _return(self) -> None:
        try:
            self._come_back.run()
        except CageError:
            os._exit(namespaces.ASTRAY)  # every later guest would be forked into the wrong namespace


def _close(descriptors: List[int]) -> None:
    for first, last in fds.ranges_of(descriptors):
        os.closerange(first, last + 1)


#: In a guest: objects that it does not need. Freeing them would write to, and so copy, the pages that they are on.
_kept: List[object] = []


def _run_guest(steps: recipe.GuestSteps, given: recipe.GuestDescriptors, await_job: _AwaitJob) -> Callable[[], None]:
    recipe.lock_in(steps, given.handoff)
    return await_job(given.job, given.go)


def _run_agent(become: GuestMain, loaded: LiveModules) -> Callable[[], None]:
    sys.modules.update(loaded.modules)
    sys.meta_path.append(loaded.finder)
    return become()


def _run_keeper(
    keeper: ModuleType, steps: recipe.Recipe, may_exec: bool, descriptors: List[int], await_job: _AwaitJob
) -> Callable[[], None]:
    given = keeper.KeeperDescriptors._make([*descriptors[:7], tuple(descriptors[7:])])
    keeper.run(steps, may_exec, given)
    return await_job(given.job, given.go)


def _clone_arguments() -> Tuple[int, ...]:
    """The arguments of clone() for a child of the manager.

    `os.fork` reinitialises the interpreter in the child, which costs as much as the rest of a cell. With one thread and
    no lock held that is unnecessary; but the caller's modules may have registered fork hooks, so if any are loaded,
    Python's functions around a fork are called.
    """
    # libc caches its thread id, and the kernel can store the new one there.
    place = fast_ctypes.c_void_p()
    flags = signal.SIGCHLD | _CLONE_PARENT
    try:
        prctl(_PR_GET_TID_ADDRESS, fast_ctypes.addressof(place))
        flags |= _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID
    except OSError:  # a kernel without CONFIG_CHECKPOINT_RESTORE: abort() in a guest ends by another signal
        pass
    address = place.value or 0
    return (flags, 0, 0, address, 0) if MACHINE == "x86_64" else (flags, 0, 0, 0, address)
