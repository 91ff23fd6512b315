"""The runs of this program that are active now, tracked by events."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from warmcell.core.events import Event, listen
from warmcell.core.light import Closing
from warmcell.core.records import dataclass, replace


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """`state` is waiting or running; `seconds` counts from the request."""

    id: str
    backend: str
    language: str
    state: str
    seconds: float
    #: Ids of a server's API.
    request: str | None = None
    tenant: str | None = None
    sandbox: str | None = None


class Activity(Closing):
    """Listens from construction until `close`; earlier runs are not included."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # `seconds` is the start time here; `runs` replaces it.
        self._runs: dict[str, ActiveRun] = {}
        self._stop = listen(self._on_event)

    def runs(self) -> list[ActiveRun]:
        """The oldest first."""
        with self._lock:
            entries = list(self._runs.values())
        now = time.monotonic()
        return [replace(entry, seconds=now - entry.seconds) for entry in entries]

    def _on_event(self, event: Event) -> None:
        identity, fields = event.subject, event.fields
        with self._lock:
            if event.name == "run.asked":
                self._runs[identity] = _waiting_run(identity, fields)
            elif event.name == "queue.entered":
                self._runs[identity] = _waiting_run(identity, {"backend": "", "language": "", **fields})
            elif event.name == "queue.left":
                self._runs.pop(identity, None)
            elif event.name == "run.started" and identity in self._runs:
                self._runs[identity] = replace(self._runs[identity], state="running")
            elif event.name == "program.started":  # with a terminal; counted elsewhere by its processes
                self._runs[identity] = replace(_waiting_run(identity, fields), state="running")
            elif event.name in ("run.ended", "program.ended"):
                self._runs.pop(identity, None)

    def close(self) -> None:
        self._stop()


def _waiting_run(identity: str, fields: Mapping[str, Any]) -> ActiveRun:
    known = {name: fields.get(name) for name in ("request", "tenant", "sandbox")}
    return ActiveRun(identity, fields["backend"], fields["language"], "waiting", time.monotonic(), **known)
