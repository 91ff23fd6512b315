"""Events for listeners. They cost nothing while there are none.

`listen(listener)` calls `listener(event)` in the thread where it happens, in order for any one run, until the returned
function is called. A listener that raises is logged on the logger "warmcell" and affects nothing else.

| name | `subject` | fields |
|---|---|---|
| `run.asked` | the run's id | backend, language, policy (a hash) |
| `run.started` | the run's id | the run has left the queue |
| `run.ended` | the run's id | outcome, exit_code, signal, fault, error, duration, queued, usage, enforced |
| `denial` | the run's id | kind, what, rule, hint |
| `network` | the host's name | decision, rule, via, port, method, path; is_left_out: counted by the audit only |
| `network.closed` | empty | sent, received: the bytes of one connection of a guest to its proxy |
| `cell` | the run's id | was_ready: whether a warm cell was ready for it |
| `file` | the sandbox's id | operation, path |
| `sandbox.made`, `sandbox.gone` | the sandbox's id | backend |
| `live.made`, `live.gone` | the sandbox's id | of its live cage; reason |
| `process.started`, `process.ended` | the sandbox's id | pid; run, exit_code, duration, usage, denials |
| `session.made`, `session.gone` | the session's id | sandbox, language |
| `session.cell` | the session's id | outcome, duration, cpu_time, error of each cell that ended |
| `queue.entered`, `queue.left` | one wait | of the server's queue |
| `request` | the request's id | of the server: tenant, sandbox, method, route, status, duration, fault, client |

No event carries code, input, environment or a guest's output; a listener with `results=True` gets them with
`run.ended`.
"""

from __future__ import annotations

import threading

from warmcell.core.records import dataclass, field, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import ContextVar, Token
    from typing import Any, TypeAlias

    Listener: TypeAlias = Callable[["Event"], object]
else:  # the C module, which loads faster
    from _contextvars import ContextVar


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    subject: str
    time: float
    fields: Mapping[str, Any]
    #: The `ExecResult` of a run that ended, for listeners with `results=True`.
    result: Any = field(default=None, repr=False)


#: Replaced as a whole, so that emitters need no lock. A run only tests whether it is empty.
listeners: tuple[tuple[Listener, bool], ...] = ()
_changing = threading.Lock()
_current: ContextVar[str] = ContextVar("warmcell.run", default="")
_is_private: ContextVar[bool] = ContextVar("warmcell.private", default=False)
_annotations: ContextVar[Mapping[str, Any]] = ContextVar("warmcell.annotations", default={})  # never changed


def listen(listener: Listener, *, results: bool = False) -> Callable[[], None]:
    """Calls `listener` for every event from now on. The returned function ends that, and may be called twice."""
    global listeners
    entry = (listener, results)
    with _changing:
        listeners = (*listeners, entry)

    def stop() -> None:
        global listeners
        with _changing:
            listeners = tuple(other for other in listeners if other is not entry)

    return stop


def emit(name: str, subject: str, fields: Mapping[str, Any], result: Any = None) -> None:
    """Calls all listeners. Callers test `listeners` first, so that an event is not built for none."""
    import time

    if _is_private.get():
        return
    if extra := _annotations.get():
        fields = {**extra, **fields}
    event = Event(name, subject, time.time(), fields)
    for listener, wants_results in listeners:
        try:
            listener(replace(event, result=result) if wants_results and result is not None else event)
        except Exception:
            _complain(name)


def _complain(name: str) -> None:
    import logging

    logging.getLogger("warmcell").warning("a listener failed at %s", name, exc_info=True)


class no_op:  # noqa: N801  # used like a function
    """Events of this thread or task are dropped meanwhile: our own probes are not runs of the caller's."""

    def __enter__(self) -> None:
        self._before: Token[bool] = _is_private.set(True)

    def __exit__(self, *_: object) -> None:
        _is_private.reset(self._before)


class annotate:  # noqa: N801  # called like a function
    """Add fields to every event of this task until the end of the block: a server names the tenant and the request.

    With a mapping instead, its fields at the time of each event replace those of the task.
    """

    def __init__(self, later: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        self._later, self._fields = later, fields

    def __enter__(self) -> None:
        fields = {**_annotations.get(), **self._fields} if self._later is None else self._later
        self._before = _annotations.set(fields)

    def __exit__(self, *_: object) -> None:
        _annotations.reset(self._before)


def annotation(name: str, default: Any = None) -> Any:
    """A field that `annotate` adds in this task."""
    return _annotations.get().get(name, default)


def new_run() -> str:
    import secrets

    return secrets.token_hex(8)


def work_for(subject: str) -> str:
    """Sets the run that this thread or task works for; returns the previous one."""
    before = _current.get()
    _current.set(subject)
    return before


def current_run() -> str:
    """The id of the run that this thread or task works for, or ""."""
    return _current.get()
