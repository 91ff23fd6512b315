"""How much memory a guest uses now, where no control group counts it."""

from __future__ import annotations

from collections.abc import Iterable

from warmcell.cage.linux.processes import descendants
from warmcell.cage.watching.patience import Patience, TooLong
from warmcell.cage.watching.usage import processes_memory

_MEASURE_SECONDS = (0.25, 1.0)  # in processor time and in wall time


def guest_memory(roots: Iterable[int], limit: int) -> int:
    """Anonymous memory of these processes and all below them, in bytes. Exact if it is over the limit.

    0 if measuring takes too long; the watcher decides about such a guest.
    """
    pids = sorted({pid for root in roots if root > 0 for pid in (root, *descendants(root))})
    try:
        return processes_memory("/proc", pids, limit, Patience(*_MEASURE_SECONDS)).own
    except TooLong:
        return 0
