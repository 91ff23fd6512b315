"""What is under way in this program: runs that wait or run, sandboxes that exist. Kept from events, ended with them."""

from __future__ import annotations

import threading
import time
from typing import Any

from warmcell.core.events import Event, listen
from warmcell.core.records import dataclass, replace


@dataclass(frozen=True, slots=True)
class RunUnderWay:
    """`state` is waiting or running; `seconds` since it was asked for."""

    id: str
    backend: str
    language: str
    state: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SandboxUnderWay:
    id: str
    backend: str
    seconds: float


class Activity:
    """Listens from the moment it is made until `close`; what began before is not known to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # With the moment of their beginning in place of the seconds since.
        self._runs: dict[str, RunUnderWay] = {}
        self._sandboxes: dict[str, SandboxUnderWay] = {}
        self._stop = listen(self._hear)

    def runs(self) -> list[RunUnderWay]:
        """The oldest first."""
        return self._aged(self._runs)

    def sandboxes(self) -> list[SandboxUnderWay]:
        """The oldest first."""
        return self._aged(self._sandboxes)

    def _aged(self, kept: dict[str, Any]) -> list[Any]:
        with self._lock:
            entries = list(kept.values())
        now = time.monotonic()
        return [replace(entry, seconds=now - entry.seconds) for entry in entries]

    def _hear(self, event: Event) -> None:
        identity, fields = event.subject, event.fields
        with self._lock:
            if event.name == "run.asked":
                backend, language = fields["backend"], fields["language"]
                self._runs[identity] = RunUnderWay(identity, backend, language, "waiting", time.monotonic())
            elif event.name == "run.started" and identity in self._runs:
                self._runs[identity] = replace(self._runs[identity], state="running")
            elif event.name == "run.ended":
                self._runs.pop(identity, None)
            elif event.name == "sandbox.made":
                self._sandboxes[identity] = SandboxUnderWay(identity, fields["backend"], time.monotonic())
            elif event.name == "sandbox.gone":
                self._sandboxes.pop(identity, None)

    def close(self) -> None:
        self._stop()

    def __enter__(self) -> Activity:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
