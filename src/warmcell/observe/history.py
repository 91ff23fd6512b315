"""The last half hour in steps of five seconds: number of runs, latency and memory, for charts.

Memory is bounded: a step has only counters. It needs no timer: the first event creates a step, and empty steps are
filled in by `steps`.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from warmcell.core.events import Event, listen

STEP_SECONDS = 5
MOST_STEPS = 360
#: Latencies are counted in buckets that grow by a tenth, from half a millisecond: 140 of them reach five minutes.
_SMALLEST, _GROWTH = 0.0005, math.log(1.1)
_MOST_CLASSES = 200


class Step:
    """Counters of five seconds."""

    __slots__ = ("largest_memory", "latencies", "most_running", "most_waiting", "outcomes", "resident", "start")

    def __init__(self, start: int, running: int, waiting: int, resident: int) -> None:
        self.start = start
        self.outcomes: Counter[str] = Counter()
        self.latencies: Counter[int] = Counter()
        self.largest_memory = 0
        self.most_running, self.most_waiting = running, waiting
        self.resident = resident

    def add(self, fields: Mapping[str, Any]) -> None:
        self.outcomes[fields["outcome"]] += 1
        if fields["duration"] is not None:
            self.latencies[_latency_class(fields["duration"] + fields["queued"])] += 1
            self.largest_memory = max(self.largest_memory, fields["peak_memory_bytes"])

    def plain(self) -> dict[str, Any]:
        return {
            "time": self.start,
            "outcomes": dict(self.outcomes),
            "p50": quantile(self.latencies, 0.5),
            "p95": quantile(self.latencies, 0.95),
            "memory": self.largest_memory,
            "running": self.most_running,
            "waiting": self.most_waiting,
            "resident": self.resident,
        }


class History:
    """Listens from construction until `close`. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._steps: deque[Step] = deque(maxlen=MOST_STEPS)
        self._states: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._stop = listen(self._on_event)

    def _on_event(self, event: Event) -> None:
        if not event.name.startswith(("run.", "queue.")):
            return
        with self._lock:
            step = self._step()
            if event.name == "queue.left":
                self._move(event.subject, None)
            elif event.name == "run.ended":
                self._move(event.subject, None)
                step.add(event.fields)
            else:
                self._move(event.subject, "running" if event.name == "run.started" else "waiting")
                step.most_running = max(step.most_running, self._counts["running"])
                step.most_waiting = max(step.most_waiting, self._counts["waiting"])

    def _move(self, subject: str, state: str | None) -> None:
        before = self._states.pop(subject, None)
        if before is not None:
            self._counts[before] -= 1
        if state is not None:
            self._states[subject] = state
            self._counts[state] += 1

    def _step(self) -> Step:
        """The current step. If the clock was set back, the last one."""
        start = int(self._clock()) // STEP_SECONDS * STEP_SECONDS
        if not self._steps or self._steps[-1].start < start:
            self._steps.append(Step(start, self._counts["running"], self._counts["waiting"], resident_bytes()))
        return self._steps[-1]

    def steps(self, since: float = 0) -> list[dict[str, Any]]:
        """Steps from `since` on, oldest first, ending with the current one."""
        with self._lock:
            last = self._step().start
            known = {step.start: step for step in self._steps}
            first = max(last - (MOST_STEPS - 1) * STEP_SECONDS, min(known))
            if since > first:  # by arithmetic: a client chooses the number
                first += math.ceil(min(since - first, last + STEP_SECONDS - first) / STEP_SECONDS) * STEP_SECONDS
            found, before = [], self._steps[0]
            for start in range(first, last + 1, STEP_SECONDS):
                before = known.get(start) or Step(start, 0, 0, before.resident)
                found.append(before.plain())
            return found

    def close(self) -> None:
        self._stop()


def _latency_class(seconds: float) -> int:
    if seconds <= _SMALLEST:
        return 0
    return min(_MOST_CLASSES, 1 + int(math.log(seconds / _SMALLEST) / _GROWTH))


def quantile(classes: Mapping[int, int], share: float) -> float | None:
    """The latency quantile in seconds, at most a tenth too high; None without runs."""
    wanted, seen = share * sum(classes.values()), 0
    for number in sorted(classes):
        seen += classes[number]
        if seen >= wanted:
            return round(_SMALLEST * math.exp(_GROWTH * number), 6)
    return None


def resident_bytes() -> int:
    """The resident memory of this process; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
