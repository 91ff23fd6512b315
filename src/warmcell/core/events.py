"""Events: what happens, for whoever listens. Nothing of it costs anything until somebody does.

`listen(hear)` calls `hear(event)` in the thread where it happens, in order for any one run, until the function that it
gave back is called. A listener that raises is told of on the logger "warmcell" and harms nobody else.

| name | `subject` | what the fields say |
|---|---|---|
| `run.asked` | the run's id | backend, language, policy (a hash) |
| `run.started` | the run's id | it waits no longer |
| `run.ended` | the run's id | outcome, exit_code, signal, fault, error, duration, queued, what it used, enforced |
| `denial` | the run's id | kind, what, rule, hint |
| `network` | the host's name | decision, rule, via, port, method, path |
| `network.closed` | nothing | sent, received: the bytes of one connection of a guest to its proxy |
| `cell` | the run's id | was_ready: whether a cage stood ready for it |
| `file` | the sandbox's id | operation, path |
| `sandbox.made`, `sandbox.gone` | the sandbox's id | backend |
| `live.made`, `live.gone` | the sandbox's id | of its live cage; reason |
| `process.started`, `process.ended` | the sandbox's id | pid; exit_code, duration, what it used, denials |
| `session.made`, `session.gone` | the session's id | sandbox, language |
| `session.cell` | the session's id | outcome, duration, cpu_time, error, of each cell that ended |

No event carries code, input, environment or a guest's output; who asks for `results` gets them with `run.ended`.
"""

from __future__ import annotations

import threading

from warmcell.core.records import dataclass, field, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import ContextVar, Token
    from typing import Any, TypeAlias

    Hear: TypeAlias = Callable[["Event"], object]
else:  # its half in C
    from _contextvars import ContextVar


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    subject: str
    time: float
    fields: Mapping[str, Any]
    #: The `ExecResult` of a run that ended, for those who asked for results.
    result: Any = field(default=None, repr=False)


#: Replaced as a whole, so that whoever emits needs no lock. The truth of it is all that a run looks at.
listeners: tuple[tuple[Hear, bool], ...] = ()
_changing = threading.Lock()
_current: ContextVar[str] = ContextVar("warmcell.run", default="")
_is_private: ContextVar[bool] = ContextVar("warmcell.private", default=False)


def listen(hear: Hear, *, results: bool = False) -> Callable[[], None]:
    """Calls `hear` for every event from now on; the function that is returned ends it, and may be called twice."""
    global listeners
    entry = (hear, results)
    with _changing:
        listeners = (*listeners, entry)

    def stop() -> None:
        global listeners
        with _changing:
            listeners = tuple(other for other in listeners if other is not entry)

    return stop


def emit(name: str, subject: str, fields: Mapping[str, Any], result: Any = None) -> None:
    """Tells everybody. Callers look at `listeners` first, so that what is told need not be made for nobody."""
    import time

    if _is_private.get():
        return
    event = Event(name, subject, time.time(), fields)
    for hear, wants_results in listeners:
        try:
            hear(replace(event, result=result) if wants_results and result is not None else event)
        except Exception:
            _complain(name)


def _complain(name: str) -> None:
    import logging

    logging.getLogger("warmcell").warning("a listener failed at %s", name, exc_info=True)


class untold:  # noqa: N801  # is called like a function, by those who know no more of it
    """What this thread or task does meanwhile is told to nobody: trials of our own are nobody's runs."""

    def __enter__(self) -> None:
        self._before: Token[bool] = _is_private.set(True)

    def __exit__(self, *_: object) -> None:
        _is_private.reset(self._before)


def new_run() -> str:
    import secrets

    return secrets.token_hex(8)


def work_for(subject: str) -> str:
    """What this thread or task does from now on is for that run; returns the one that it was for."""
    before = _current.get()
    _current.set(subject)
    return before


def current_run() -> str:
    """The id of the run that this thread or task works for, or nothing."""
    return _current.get()
