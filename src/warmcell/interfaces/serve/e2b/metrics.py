"""E2B's metrics of a sandbox, sampled in the cage when a client asks; the last samples are kept."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

from warmcell.core.timestamps import rfc3339
from warmcell.interfaces.serve.e2b.box import Box

KEPT = 500
#: Clients ask in whole seconds.
_GRAIN = 1.0


class Samples:
    """Of one sandbox."""

    def __init__(self, created: float) -> None:
        self.kept: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.last_time, self.last_cpu_seconds = created, 0.0


async def metrics_of(box: Box, begin: float | None, end: float | None) -> list[dict[str, Any]]:
    """The samples of that time, oldest first. A paused sandbox is not sampled."""
    samples = box.entry.state.get(Samples, lambda: Samples(box.entry.created))
    is_about_now = end is None or end >= time.time() - 2 * _GRAIN
    if is_about_now and not box.is_paused:
        samples.kept.append(await _sample(box, samples))
    first, last = (begin or 0.0) - _GRAIN, (time.time() if end is None else end) + _GRAIN
    return [sample for sample in samples.kept if first <= sample["timestampUnix"] <= last]


async def _sample(box: Box, samples: Samples) -> dict[str, Any]:
    found = await box.files.ask("usage")
    now, seconds = time.time(), float(found["seconds"])
    elapsed, used = now - samples.last_time, seconds - samples.last_cpu_seconds
    samples.last_time, samples.last_cpu_seconds = now, seconds
    limits = box.entry.sandbox.limits
    return {
        "timestamp": rfc3339(now),
        "timestampUnix": int(now),
        "cpuCount": os.cpu_count() or 1,
        "cpuUsedPct": round(max(0.0, used) / max(elapsed, 0.001) * 100, 2),
        "memUsed": int(found["memory"]),
        "memTotal": (limits.memory_mb or 0) << 20,
        "memCache": 0,
        "diskUsed": int(found["disk"]),
        "diskTotal": (limits.disk_mb or 0) << 20,
    }
