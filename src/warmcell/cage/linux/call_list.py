"""Lists of system calls, made before a fork and carried out after it.

What a new child does until its cage stands is known beforehand. Carried out by Python, every step touches pages that
the child shares with its zygote, and each touch is a copy; written down as a list, all of it takes a few hundred bytes
of machine code that decides nothing (machine_code/call_list_*.S). Where memory may not be executed, Python goes through
the same list.
"""

from __future__ import annotations

import mmap
import os
import struct

from ..failure import CageError
from ..light import lru_cache, signal
from ..records import NamedTuple
from . import foreign
from .syscalls import MACHINE, NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

    _Function = Callable[[int, int, int, int], int]
    _Bound = Tuple[Callable[..., int], Tuple[Any, ...]]

    from .arena import Arena

    Word = Union[int, bytes, "Value", "foreign.Array[foreign.c_char]", None]

_WORDS = 11
_ANY = -1
_WORD_MASK = (1 << 64) - 1

#: machine: (offset of `spawn`, the bytes that machine_code/call_list_<machine>.S assembles to)
MACHINE_CODE = {
    "x86_64": (
        0xA0,
        "535541544155415641574889fb4989f44989d54c8d34ca31ed4c39e5746a4c8b7b384883ec3031c9488b44cb08490fa3"
        "cf7305498b44c500488904ccffc183f90675e55f5e5a415a41584159488b030f05498904ee488b4b504885c974028901"
        "483d01f0ffff7311488b4b404883f9ff740d4839c17408eb0f483b434875094883c35848ffc5eb914889e8415f415e41"
        "5d415c5d5bc3662e0f1f840000000000534889cb4531d24531c0b8380000000f054885c074025bc3488b3b488b730848"
        "8b5310488b4b18e834ffffffbf01000000b8e70000000f05",
    ),
    "aarch64": (
        0xE0,
        "fd7bbca9f35301a9f55b02a9f76303a9f30300aaf40301aaf50302aa560c038b170080d2ff0214eba0040054781e40f9"
        "608640a9628e41a9649642a958000036a07a60f858000836a17a61f858001036a27a62f858001836a37a63f858002036"
        "a47a64f858002836a57a65f8680240f9010000d4c07a37f8692a40f9490000b4200100b91ffc3fb1e2000054692240f9"
        "3f0500b1e00000543f0100eba000005407000014692640f93f0100eb8100005473620191f7060091dbffff17e00317aa"
        "f76343a9f55b42a9f35341a9fd7bc4a8c0035fd61f2003d51f2003d51f2003d5fd7bbea9f30b00f9f30303aa030080d2"
        "040080d2881b80d2010000d4800000b4f30b40f9fd7bc2a8c0035fd6600640a9620e41a9bbffff97200080d2c80b80d2"
        "010000d4",
    ),
}


class Value(NamedTuple):
    """A word that is known only when the list is carried out: given to it, or the result of an earlier call."""

    place: int


class Field(NamedTuple):
    """Four bytes of a buffer into which a result is put, for a later call to find."""

    buffer: "foreign.Array[foreign.c_char]"
    offset: int


class Part(NamedTuple):
    """What the calls from `first` on belong to, for the one who reads the error."""

    first: int
    step: str
    what: str


class CallList:
    """Grows by `call`, is carried out by `run`, any number of times. `given` is how many words each run brings.

    With an arena, all that it refers to is in there; unless that is full, and then there is none any more.
    """

    def __init__(self, given: int = 0, arena: Optional[Arena] = None) -> None:
        self._given = given
        self.arena = arena
        self._words: List[int] = []
        self._parts: List[Part] = []
        self._kept: List[object] = []
        self._count = 0
        self._memory: Optional["foreign.Array[foreign.c_char]"] = None

    def part(self, step: str, what: str = "") -> None:
        """Names the step of the cage that the following calls carry out."""
        self._parts.append(Part(self._count, step, what))

    def call(
        self,
        name: str,
        *arguments: Word,
        wanted: int = _ANY,
        tolerated: int = 0,
        into: Optional[Field] = None,
    ) -> Value:
        """One system call. `wanted`: its only good result. `tolerated`: an errno that is none. Returns its result."""
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
            place = foreign.addressof(into.buffer) + into.offset
        self._words += [number, *words, references, wanted & _WORD_MASK, -tolerated & _WORD_MASK, place]
        self._count += 1
        self._memory = None
        return Value(self._given + self._count - 1)

    def buffer(self, content: bytes) -> "foreign.Array[foreign.c_char]":
        """A copy of the content, with a zero after it, that lives as long as the list."""
        buffer = self.arena.take(content) if self.arena is not None else None
        if buffer is None:
            self.arena = None
            buffer = foreign.create_string_buffer(content)
        self._kept.append(buffer)
        return buffer

    @staticmethod
    def address(buffer: "foreign.Array[foreign.c_char]") -> int:
        """For another buffer that refers to it."""
        return foreign.addressof(buffer)

    def _word(self, argument: Union[int, bytes, "foreign.Array[foreign.c_char]", None]) -> int:
        if argument is None:
            return 0
        if isinstance(argument, int):
            return argument & _WORD_MASK
        if isinstance(argument, bytes):
            argument = self.buffer(argument)
        self._kept.append(argument)
        return foreign.addressof(argument)

    def __len__(self) -> int:
        return self._count

    def steps(self) -> bytes:
        """As the machine code reads them."""
        return struct.pack(f"={len(self._words)}Q", *self._words)

    def parts(self) -> List[Part]:
        """What each of the calls belongs to."""
        return [self._part_of(index) for index in range(self._count)]

    def _part_of(self, index: int) -> Part:
        return max((part for part in self._parts if part.first <= index), key=lambda part: part.first)

    def prepare(self, given: Sequence[int]) -> "Prepared":
        """Everything that a run needs, laid out, so that running it touches next to nothing."""
        if len(given) != self._given:
            raise ValueError(f"{len(given)} words given instead of {self._given}")
        if self._memory is None:
            self._memory = foreign.create_string_buffer(self.steps())
        values = (foreign.c_int64 * (self._given + self._count))(*given)
        return Prepared(self, self._memory, self._count, values, self._given, self._bound(self._memory, values))

    def _bound(self, memory: "foreign.Array[foreign.c_char]", values: "foreign.Array[foreign.c_int64]") -> _Bound:
        run = _machine_code().run
        if run is None:
            return _run_plainly, (memory, self._count, values, self._given)
        return run, (foreign.addressof(memory), self._count, foreign.addressof(values), self._given)

    def failure(self, done: int, result: int) -> CageError:
        """What it means that only `done` calls were carried out."""
        part = self._part_of(done)
        number = -result if -4096 < result < 0 else 0
        return CageError(part.step, number, part.what or "unexpected answer" if not number else part.what)


class Prepared(NamedTuple):
    """A list with the words of one run."""

    calls: CallList
    steps: "foreign.Array[foreign.c_char]"
    length: int
    values: "foreign.Array[foreign.c_int64]"
    given: int
    #: A function and its arguments: it carries out the list, and returns how many of the calls it came to.
    bound: _Bound

    def run(self) -> None:
        """Carries it out in this process; raises the step that failed."""
        function, arguments = self.bound
        done = function(*arguments)
        if done != self.length:
            raise self.calls.failure(done, self.values[self.given + done])

    def failure(self) -> Optional[CageError]:
        """For who shares the memory of the process that runs it, when that has ended: the call at which it did."""
        for index in range(self.length):
            result = self.values[self.given + index]
            if result < 0 and result != self._tolerated(index):
                return self.calls.failure(index, result)
        return None

    def _tolerated(self, index: int) -> int:
        (word,) = struct.unpack_from("=q", self.steps, (index * _WORDS + 9) * 8)
        return int(word)

    def result(self, value: Value) -> int:
        return int(self.values[value.place])


def _run_plainly(
    steps: "foreign.Array[foreign.c_char]", length: int, values: "foreign.Array[foreign.c_int64]", given: int
) -> int:
    """The same as the machine code, by Python."""
    step = struct.Struct(f"={_WORDS}q")
    for index in range(length):
        number, *words, references, wanted, tolerated, place = step.unpack_from(steps, index * step.size)
        words = [values[word] if references >> bit & 1 else word for bit, word in enumerate(words)]
        result = int(_libc.syscall(*(foreign.c_long(word) for word in (number, *words))))
        if result == -1:
            result = -foreign.get_errno()
        values[given + index] = result
        if place:
            foreign.write_memory(place, struct.pack("=i", result))
        if result != tolerated if result < 0 else wanted not in (_ANY, result):
            return index
    return length


def load() -> None:
    """Makes the machine code now, for all forks of this process to have."""
    _machine_code()


def code() -> bytes:
    """`run` begins it; where it is put does not matter."""
    _, *text = MACHINE_CODE[MACHINE]
    return bytes.fromhex("".join(str(line) for line in text))


def can_spawn() -> bool:
    return _machine_code().spawn is not None


class Spawned(NamedTuple):
    """A child that shares this process's memory until its last call, an exec. `stack` must outlive that."""

    pid: int
    pidfd: int
    keeps: Tuple[object, ...]


def spawn(flags: int, prepared: Prepared, with_pidfd: bool = True, exit_signal: int = signal.SIGCHLD) -> Spawned:
    """A child without a copy of this process's memory: it runs the list and nothing else. `flags` are namespaces.

    It starts with all signals blocked: a handler of ours must never run on its small stack.
    """
    start = _machine_code().spawn
    assert start is not None
    stack = (foreign.c_char * _STACK)()
    top = (foreign.addressof(stack) + _STACK) & ~15
    pidfd = foreign.c_int(-1)
    steps, values = foreign.addressof(prepared.steps), foreign.addressof(prepared.values)
    arguments = (foreign.c_int64 * 4)(steps, prepared.length, values, prepared.given)
    before = signal.pthread_sigmask(signal.SIG_SETMASK, _ALL_SIGNALS)
    try:
        flags |= _CLONE_VM | exit_signal | (_CLONE_PIDFD if with_pidfd else 0)
        pid = start(flags, top, foreign.addressof(pidfd), foreign.addressof(arguments))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    return Spawned(pid, pidfd.value, (prepared, stack, arguments))


_STACK = 4096
_CLONE_VM, _CLONE_PIDFD = 0x100, 0x1000
_ALL_SIGNALS = signal.valid_signals()
_libc = foreign.CDLL(None, use_errno=True)
_libc.syscall.restype = foreign.c_long


class _MachineCode(NamedTuple):
    """The functions; None where there are none for this machine, or memory may not be executed."""

    run: Optional[_Function]
    spawn: Optional[_Function]


@lru_cache(maxsize=1)
def _machine_code() -> _MachineCode:
    if MACHINE not in MACHINE_CODE or struct.calcsize("P") != 8:
        return _MachineCode(None, None)
    try:
        # Private: guests are forks, and in a page that they shared with us they would write what we execute.
        memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return _MachineCode(None, None)
    memory.write(code())
    _keep_mapped.append(memory)
    place = foreign.addressof(foreign.c_char.from_buffer(memory))
    if _libc.mprotect(foreign.c_void_p(place), foreign.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC):
        return _MachineCode(None, None)  # SELinux and others forbid it
    # PYFUNCTYPE: the interpreter's lock is kept, as there is nobody else in a zygote or its child to give it to.
    function = foreign.PYFUNCTYPE(foreign.c_long, *[foreign.c_long] * 4)
    return _MachineCode(function(place), function(place + int(MACHINE_CODE[MACHINE][0])))


_keep_mapped: List[mmap.mmap] = []
