"""What E2B's clients are told that a sandbox uses. Measured when somebody asks, in the cage, and kept for a while."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

from warmcell.interfaces.serve.e2b.box import Box, rfc3339

KEPT = 500
#: Clients ask in whole seconds.
_GRAIN = 1.0


async def metrics_of(box: Box, begin: float | None, end: float | None) -> list[dict[str, Any]]:
    """Those of that time, oldest first. A paused sandbox uses what it used when it was paused."""
    kept: deque[dict[str, Any]] = box.extras.setdefault("metrics", deque(maxlen=KEPT))
    is_about_now = end is None or end >= time.time() - 2 * _GRAIN
    if is_about_now and not box.is_paused:
        kept.append(await _measured(box))
    first, last = (begin or 0.0) - _GRAIN, (time.time() if end is None else end) + _GRAIN
    return [sample for sample in kept if first <= sample["timestampUnix"] <= last]


async def _measured(box: Box) -> dict[str, Any]:
    found = await box.files.ask("usage")
    now, seconds = time.time(), float(found["seconds"])
    before, had = box.extras.get("measured", (box.held.created, 0.0))
    box.extras["measured"] = (now, seconds)
    limits = box.held.sandbox.limits
    return {
        "timestamp": rfc3339(now),
        "timestampUnix": int(now),
        "cpuCount": os.cpu_count() or 1,
        "cpuUsedPct": round(max(0.0, seconds - had) / max(now - before, 0.001) * 100, 2),
        "memUsed": int(found["memory"]),
        "memTotal": (limits.memory_mb or 0) << 20,
        "memCache": 0,
        "diskUsed": int(found["disk"]),
        "diskTotal": (limits.disk_mb or 0) << 20,
    }
