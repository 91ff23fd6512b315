"""How long it is safe not to look. Pure module."""

from __future__ import annotations

from ..plan import Watch

SLOWEST_LOOK = 0.1
FASTEST_LOOK = 0.002
SLOWEST_CPU_LOOK = 0.02
#: A guest can take all memory of a device at once. A look takes a few milliseconds, so more looks would cost too much.
SLOWEST_GPU_LOOK = 0.02
_FASTEST_GROWTH = 4e9  # bytes per second that a guest might allocate between two looks


def pause_before_look(watch: Watch, used: int = 0) -> float:
    """If the tree uses so much."""
    pause = SLOWEST_CPU_LOOK if watch.cpu_seconds else SLOWEST_LOOK
    if watch.gpu_memory_bytes:
        pause = min(pause, SLOWEST_GPU_LOOK)
    if not watch.memory_bytes:
        return pause
    return min(pause, max((watch.memory_bytes - used) / _FASTEST_GROWTH, FASTEST_LOOK))
