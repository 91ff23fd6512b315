"""Descriptors in call lists: guests inherit only 0, 1 and 2."""

from __future__ import annotations

import os

from .call_list import CallList, Field, Value
from .syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Sequence, Tuple

_LARGEST = 0xFFFFFFFF
_CLOSE_RANGE_CLOEXEC = 4
_AT_FDCWD = -100
_EINVAL = 22


def use_as_stdio(calls: CallList, descriptors: Sequence[Value]) -> None:
    """Duplicate three descriptors, all above 2, to 0, 1 and 2."""
    calls.begin_step("use as stdio")
    for target, source in enumerate(descriptors):
        calls.call("dup3", source, target, 0)


def open_path(calls: CallList, path: str, flags: int, into: Optional[Field] = None) -> Value:
    return calls.call("openat", _AT_FDCWD, os.fsencode(path), flags | os.O_CLOEXEC, 0, into=into)


def close_in_list(calls: CallList, descriptors: Sequence[Value]) -> None:
    for descriptor in descriptors:
        calls.call("close", descriptor)


def ranges_of(descriptors: Sequence[int]) -> List[Tuple[int, int]]:
    """First and last of each run of adjacent numbers, which most are: the kernel uses the lowest free ones. Pure."""
    ranges: List[Tuple[int, int]] = []
    for descriptor in sorted(descriptors):
        if ranges and descriptor == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], descriptor)
        else:
            ranges.append((descriptor, descriptor))
    return ranges


def close_numbers(calls: CallList, descriptors: Sequence[int]) -> None:
    calls.begin_step("close descriptors")
    for first, last in ranges_of(descriptors):
        calls.call("close_range", first, last, 0)


def close_gaps(calls: CallList, gaps: Sequence[Tuple[Value, Value]]) -> None:
    """Close the gaps from `gaps_between`. EINVAL is allowed: adjacent numbers have an empty gap."""
    calls.begin_step("close descriptors")
    for first, last in gaps:
        calls.call("close_range", first, last, 0, allowed_errno=_EINVAL)


def gaps_between(*kept: int) -> List[int]:
    """First and last descriptor of each gap from 3 on. Pure."""
    bounds, start = [], 3
    for descriptor in sorted(kept):
        bounds += [start, descriptor - 1]
        start = descriptor + 1
    return [*bounds, start, _LARGEST]


def close_all_but(*kept: int) -> None:
    """Close all descriptors above 2 except these, in this process."""
    bounds = iter(gaps_between(*kept))
    for first in bounds:
        last = next(bounds)
        if first <= last:
            call("close_range", first, last, 0)


def end_on_exec(calls: CallList) -> None:
    """Close all descriptors above 2 at the next exec."""
    calls.call("close_range", 3, _LARGEST, _CLOSE_RANGE_CLOEXEC)
