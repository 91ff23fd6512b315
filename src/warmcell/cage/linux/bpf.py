"""Classic BPF as data: instructions of a seccomp filter, and the building blocks of rules. Pure module."""

from __future__ import annotations

from ..records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence, Tuple


KILL, ALLOW, NOTIFY = 0x80000000, 0x7FFF0000, 0x7FC00000
_EPERM = 1


def errno(number: int) -> int:
    """The action that returns an error to the caller."""
    return 0x00050000 | number


# Offsets in struct seccomp_data; arguments are 64 bits, little endian on both architectures.
NR, ARCH = 0, 4


def argument(index: int) -> int:
    return 16 + 8 * index


LD, JA, JEQ, JGE, JSET, AND, RET = 0x20, 0x05, 0x15, 0x35, 0x45, 0x54, 0x06
_FARTHEST = 255  # reach of a conditional jump


class Instruction(NamedTuple):
    code: int
    jump_true: int
    jump_false: int
    value: int


def ret(action: int) -> Instruction:
    return Instruction(RET, 0, 0, action)


def load(offset: int) -> Instruction:
    return Instruction(LD, 0, 0, offset)


def returns_if_equal(values: Sequence[int], action: int) -> List[Instruction]:
    body: List[Instruction] = []
    for value in values:
        body += [Instruction(JEQ, 0, 1, value), ret(action)]
    return body


def returns_if_any_bit(bits: int, action: int) -> List[Instruction]:
    return [Instruction(JSET, 0, 1, bits), ret(action)]


def without_bits(index: int, bits: int) -> List[Instruction]:
    return [load(argument(index)), *returns_if_any_bit(bits, errno(_EPERM)), ret(ALLOW)]


def only(index: int, values: Sequence[int]) -> List[Instruction]:
    return [load(argument(index)), *returns_if_equal(values, ALLOW), ret(errno(_EPERM))]


def all_but(index: int, values: Sequence[int]) -> List[Instruction]:
    return [load(argument(index)), *returns_if_equal(values, errno(_EPERM)), ret(ALLOW)]


def search(cases: Sequence[Tuple[int, List[Instruction]]]) -> List[Instruction]:
    """A binary search. Each case is the first number that its rule applies to, ascending from 0.

    When a filter is installed, the kernel evaluates it once for every call number: with a linear list that would cost
    each cell more than everything else about the filter.
    """
    if len(cases) == 1:
        return cases[0][1]
    middle = len(cases) // 2
    below, above = search(cases[:middle]), search(cases[middle:])
    first = cases[middle][0]
    if len(below) <= _FARTHEST:
        return [Instruction(JGE, len(below), 0, first), *below, *above]
    return [Instruction(JGE, 0, 1, first), Instruction(JA, 0, 0, len(below)), *below, *above]
