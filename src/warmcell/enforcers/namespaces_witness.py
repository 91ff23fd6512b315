"""Somebody who is making namespaces anyway, and can tell that they are to be had: then nobody need try them first."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_witnesses: list[Callable[[], bool]] = []


def will_tell(witness: Callable[[], bool]) -> None:
    """It is asked once, if at all, and may wait for the answer. False: it does not know, or could not make them."""
    _witnesses.append(witness)


def has_seen_them() -> bool:
    return any([_witnesses.pop()() for _ in range(len(_witnesses))])
