"""Steps that are slow the first time on a machine, such as compiling a library, as the command shows them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Replaced as a whole, so that reporters need no lock.
_listeners: tuple[Callable[[str], None], ...] = ()


def listen(listener: Callable[[str], None]) -> Callable[[], None]:
    """Call `listener` with the text of each step. The returned function ends that, and may be called twice."""
    global _listeners
    _listeners = (*_listeners, listener)

    def stop() -> None:
        global _listeners
        _listeners = tuple(other for other in _listeners if other is not listener)

    return stop


def report_slow_step(what: str) -> None:
    """Say what takes long, and why. Without a listener it is logged as a warning."""
    for listener in _listeners:
        listener(what)
    if not _listeners:
        import logging

        logging.getLogger("warmcell").warning(what)
