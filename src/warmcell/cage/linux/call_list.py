"""Lists of system calls, prepared before a fork and executed after it.

The calls that build a cage are known in advance. If Python made them, each would touch, and so copy, pages that the
child shares with its zygote. A list is executed by a few hundred bytes of machine code that makes no decisions
(machine_code/call_list-*.S). Where memory may not be executed, Python executes the same list.
"""

from __future__ import annotations

import mmap
import os
import struct

from ..failure import CageError
from ..fast_imports import lru_cache, signal
from ..records import NamedTuple
from . import fast_ctypes
from .native_code import read_code
from .syscall_numbers import ANY_RESULT, CALL, MACHINE, NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

    from .native_code import Arena

    Buffer = fast_ctypes.Array[fast_ctypes.c_char]
    Words = fast_ctypes.Array[fast_ctypes.c_int64]
    Word = Union[int, bytes, "Value", Buffer, None]
    _Function = Callable[[int, int, int, int], int]
    _Bound = Tuple[Callable[..., int], Tuple[Any, ...]]

#: The offset of `spawn` in the code; `run` is at its beginning.
SPAWN_OFFSETS = {"x86_64": 0xA0, "aarch64": 0xE0}

_STACK = 4096
_CLONE_VM, _CLONE_PIDFD = 0x100, 0x1000
_ALL_SIGNALS = signal.valid_signals()
_libc = fast_ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = fast_ctypes.c_long


class Value(NamedTuple):
    """A word that is known only when the list runs: an argument of the list, or the result of an earlier call."""

    place: int


class Field(NamedTuple):
    """Four bytes of a buffer in which a call stores its result, for a later call."""

    buffer: Buffer
    offset: int


class ListStep(NamedTuple):
    """The step of the cage that calls from index `first` on belong to, for error messages."""

    first: int
    step: str
    what: str


class CallList:
    """Built by `call`; `prepare` binds it to the arguments of one run. It can be used any number of times.

    `given` is the number of arguments. With an arena, all data of the list is allocated there; if the arena is full,
    `arena` becomes None.
    """

    def __init__(self, given: int = 0, arena: Optional[Arena] = None) -> None:
        self._given, self.arena = given, arena
        self._encoded: List[bytes] = []
        self._steps: List[ListStep] = []
        self._kept: List[object] = []
        self._count = 0
        self._memory: Optional[Buffer] = None

    def begin_step(self, step: str, what: str = "") -> None:
        """Name the step of the cage that the following calls belong to."""
        self._steps.append(ListStep(self._count, step, what))

    def call(
        self,
        name: str,
        *arguments: Word,
        expected: int = ANY_RESULT,
        allowed_errno: int = 0,
        into: Optional[Field] = None,
    ) -> Value:
        """Add a system call; returns its result, as a value for later calls.

        The list stops if the call fails with another error than `allowed_errno`, or its result is not `expected`.
        """
        number = NUMBERS.get(name)
        if number is None:
            raise OSError(38, f"{name} is not known on {MACHINE}")
        words, references = [0] * 6, 0
        for index, argument in enumerate(arguments):
            if isinstance(argument, Value):
                references |= 1 << index
                words[index] = argument.place
            else:
                words[index] = self._word(argument)
        place = 0
        if into is not None:
            self._kept.append(into.buffer)
            place = fast_ctypes.addressof(into.buffer) + into.offset
        self._encoded.append(CALL.pack(number, *words, references, expected, -allowed_errno, place))
        self._count += 1
        self._memory = None
        return Value(self._given + self._count - 1)

    def buffer(self, content: bytes) -> Buffer:
        """A NUL-terminated copy of the content that lives as long as the list."""
        buffer = self.arena.take(content) if self.arena is not None else None
        if buffer is None:
            self.arena = None
            buffer = fast_ctypes.create_string_buffer(content)
        self._kept.append(buffer)
        return buffer

    @staticmethod
    def address(buffer: Buffer) -> int:
        """The address of a buffer, for use in another buffer."""
        return fast_ctypes.addressof(buffer)

    def _word(self, argument: Union[int, bytes, Buffer, None]) -> int:
        if argument is None:
            return 0
        if isinstance(argument, int):
            return argument
        if isinstance(argument, bytes):
            argument = self.buffer(argument)
        self._kept.append(argument)
        return fast_ctypes.addressof(argument)

    def __len__(self) -> int:
        return self._count

    def encode(self) -> bytes:
        """The list in the format of the machine code."""
        return b"".join(self._encoded)

    def steps(self) -> List[ListStep]:
        """The step of each call."""
        return [self._step_of(index) for index in range(self._count)]

    def _step_of(self, index: int) -> ListStep:
        return max((step for step in self._steps if step.first <= index), key=lambda step: step.first)

    def prepare(self, given: Sequence[int]) -> PreparedCalls:
        """Allocate everything that a run needs, so that running it touches as little memory as possible."""
        if len(given) != self._given:
            raise ValueError(f"expected {self._given} words, not {len(given)}")
        if self._memory is None:
            self._memory = fast_ctypes.create_string_buffer(self.encode())
        values = (fast_ctypes.c_int64 * (self._given + self._count))(*given)
        return PreparedCalls(self, self._memory, self._count, values, self._given, self._bind(self._memory, values))

    def _bind(self, memory: Buffer, values: Words) -> _Bound:
        run = _machine_code().run
        if run is None:
            return _run_in_python, (memory, self._count, values, self._given)
        return run, (fast_ctypes.addressof(memory), self._count, fast_ctypes.addressof(values), self._given)

    def failure(self, done: int, result: int) -> CageError:
        """The error of a run that stopped after `done` calls, the next of which returned `result`."""
        step = self._step_of(done)
        number = -result if -4096 < result < 0 else 0
        return CageError(step.step, number, step.what or "unexpected result" if not number else step.what)


class PreparedCalls(NamedTuple):
    """A list bound to the arguments of one run."""

    calls: CallList
    steps: Buffer
    length: int
    values: Words
    given: int
    #: A function and its arguments. It runs the list and returns how many calls succeeded.
    bound: _Bound

    def run(self) -> None:
        """Run the list in this process; raises the `CageError` of the step that failed."""
        function, arguments = self.bound
        done = function(*arguments)
        if done != self.length:
            raise self.calls.failure(done, self.values[self.given + done])

    def failure(self) -> Optional[CageError]:
        """The error of a child that shared this memory and has exited; None if no call failed."""
        for index in range(self.length):
            result = self.values[self.given + index]
            if result < 0 and result != self._error_allowed_at(index):
                return self.calls.failure(index, result)
        return None

    def _error_allowed_at(self, index: int) -> int:
        return int(CALL.unpack_from(self.steps, index * CALL.size)[9])

    def result(self, value: Value) -> int:
        return int(self.values[value.place])


def _run_in_python(steps: Buffer, length: int, values: Words, given: int) -> int:
    """Do what the machine code does."""
    for index in range(length):
        number, *words, references, expected, allowed_error, place = CALL.unpack_from(steps, index * CALL.size)
        words = [values[word] if references >> bit & 1 else word for bit, word in enumerate(words)]
        result = int(_libc.syscall(*(fast_ctypes.c_long(word) for word in (number, *words))))
        if result == -1:
            result = -fast_ctypes.get_errno()
        values[given + index] = result
        if place:
            fast_ctypes.write_memory(place, struct.pack("=i", result))
        if result != allowed_error if result < 0 else expected not in (ANY_RESULT, result):
            return index
    return length


def load_machine_code() -> None:
    """Map the machine code now, so that all forks of this process have it."""
    _machine_code()


def can_spawn() -> bool:
    return _machine_code().spawn is not None


class SpawnedChild(NamedTuple):
    """A child that shares this process's memory until it execs or exits; until then `keeps` must stay alive."""

    pid: int
    pidfd: int
    keeps: Tuple[object, ...]


def spawn(
    flags: int, prepared: PreparedCalls, with_pidfd: bool = True, exit_signal: int = signal.SIGCHLD
) -> SpawnedChild:
    """Start a child that runs the list, sharing this process's memory. `flags` are namespaces.

    All signals are blocked in it: a handler of ours must never run on its small stack.
    """
    start = _machine_code().spawn
    assert start is not None
    stack = (fast_ctypes.c_char * _STACK)()
    top = (fast_ctypes.addressof(stack) + _STACK) & ~15
    pidfd = fast_ctypes.c_int(-1)
    steps, values = fast_ctypes.addressof(prepared.steps), fast_ctypes.addressof(prepared.values)
    arguments = (fast_ctypes.c_int64 * 4)(steps, prepared.length, values, prepared.given)
    before = signal.pthread_sigmask(signal.SIG_SETMASK, _ALL_SIGNALS)
    try:
        flags |= _CLONE_VM | exit_signal | (_CLONE_PIDFD if with_pidfd else 0)
        pid = start(flags, top, fast_ctypes.addressof(pidfd), fast_ctypes.addressof(arguments))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    return SpawnedChild(pid, pidfd.value, (prepared, stack, arguments))


class _MachineCode(NamedTuple):
    """The functions; None on other architectures, or where memory may not be executed."""

    run: Optional[_Function]
    spawn: Optional[_Function]


@lru_cache(maxsize=1)
def _machine_code() -> _MachineCode:
    code = read_code("call_list")
    if not code or struct.calcsize("P") != 8:
        return _MachineCode(None, None)
    try:
        # Private: guests are forks, and could write to a shared page that we execute.
        memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return _MachineCode(None, None)
    memory.write(code)
    _keep_mapped.append(memory)
    place = fast_ctypes.addressof(fast_ctypes.c_char.from_buffer(memory))
    size = fast_ctypes.c_size_t(mmap.PAGESIZE)
    if _libc.mprotect(fast_ctypes.c_void_p(place), size, mmap.PROT_READ | mmap.PROT_EXEC):
        return _MachineCode(None, None)  # forbidden, for example by SELinux
    # PYFUNCTYPE keeps the GIL: a zygote and its children have one thread.
    function = fast_ctypes.PYFUNCTYPE(fast_ctypes.c_long, *[fast_ctypes.c_long] * 4)
    return _MachineCode(function(place), function(place + SPAWN_OFFSETS[MACHINE]))


_keep_mapped: List[mmap.mmap] = []
