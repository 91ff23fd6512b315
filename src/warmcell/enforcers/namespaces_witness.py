"""Somebody who is making namespaces anyway, and can tell what else the kernel has: then nobody need try that first."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Seen = tuple[bool, int]

_witnesses: list[Callable[[], Seen]] = []


def will_tell(witness: Callable[[], Seen]) -> None:
    """It is asked once, if at all, and may wait for the answer.

    Whether it made namespaces (False: it could not, or does not know), and the version of Landlock if nothing else that
    a cage needs is missing either (0: something is, or it does not know).
    """
    _witnesses.append(witness)


def what_was_seen() -> Seen:
    return max([_witnesses.pop()() for _ in range(len(_witnesses))], default=(False, 0))
