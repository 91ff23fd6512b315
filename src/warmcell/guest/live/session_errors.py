"""Exceptions of cells as text, with the lines of the cell and without our own frames."""

import os
import traceback

#: Characters of each text; message and traceback must fit into one frame.
_LONGEST = 32 * 1024
_OWN = os.path.dirname(__file__)


def describe(error):
    """An exception as plain data."""
    return {
        "name": type(error).__name__[:200],
        "message": _cut(_text_of(error)),
        "traceback": _cut(_traceback(error)),
    }


def _text_of(error):
    try:
        return str(error)
    except Exception as other:  # the guest's own __str__
        return f"<{type(error).__name__}, whose __str__ raised {type(other).__name__}>"


def _traceback(error):
    try:
        report = traceback.TracebackException(type(error), error, error.__traceback__)
        _leave_out_ours(report, set())
        _begin_at_cell(report.stack)
        return "".join(report.format())
    except Exception as other:  # the guest's classes may raise anything
        return f"{type(error).__name__}: (no traceback: {type(other).__name__} while it was written)\n"


def _leave_out_ours(report, seen):
    if report is None or id(report) in seen:
        return
    seen.add(id(report))
    report.stack[:] = [frame for frame in report.stack if os.path.dirname(frame.filename) != _OWN]
    for other in (report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())):
        _leave_out_ours(other, seen)


def _begin_at_cell(stack):
    """Drops the frames above the cell: they belong to the event loop that ran it."""
    for index, frame in enumerate(stack):
        if frame.filename.startswith("<cell "):
            del stack[:index]
            return


def _cut(text):
    """Keeps the beginning and the end of a long text."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]}\n... {len(text) - _LONGEST} characters left out ...\n{text[-_LONGEST // 2 :]}"
