"""What a live cage was refused, and when: its programs share it, and each is told what came while it ran."""

from __future__ import annotations

import threading
import time

from warmcell.core.types import Denial
from warmcell.runner.denials import MOST_DENIALS, refused

#: The cage tells the same thing again only after this time: what was told so shortly before may have been repeated.
_TOLD_AGAIN_AFTER = 0.1


class LiveDenials:
    """For any number of threads. `targets`: what the policy shows, of which no file is refused."""

    def __init__(self, targets: tuple[str, ...]) -> None:
        self._targets = targets
        self._last: dict[Denial, float] = {}
        self._lock = threading.Lock()

    def add(self, denial: Denial) -> None:
        with self._lock:
            if denial in self._last or len(self._last) < MOST_DENIALS:
                self._last[denial] = time.monotonic()

    def note(self, kind: str, what: str) -> None:
        """As the cage has it."""
        for denial in refused([[kind, what]], self._targets):
            self.add(denial)

    def since(self, moment: float) -> list[Denial]:
        with self._lock:
            return [denial for denial, last in self._last.items() if last >= moment - _TOLD_AGAIN_AFTER]
