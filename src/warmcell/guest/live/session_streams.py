"""The standard streams of a Python session: output in lines as on a terminal, input from the caller."""

import builtins
import io
import os
import sys
import traceback

#: Characters of each text; message and traceback must fit into one frame.
_LONGEST = 32 * 1024
_OWN = os.path.dirname(__file__)


def describe(error):
    """An exception of a cell as plain data, with the lines of the cell and without our own frames."""
    return {"name": type(error).__name__[:200], "message": _cut(_text_of(error)), "traceback": _cut(_traceback(error))}


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


class AskedInput(io.TextIOBase):
    """`sys.stdin` of a session. Closing it, as `exit()` does, closes nothing."""

    encoding = "utf-8"
    errors = "strict"
    name = "<stdin>"
    mode = "r"

    def __init__(self, ask):
        self._ask = ask

    def readable(self):
        return True

    def close(self):
        pass

    def readline(self, size=-1):
        line = self._ask("")
        return "" if line is None else line + "\n"

    def read(self, size=-1):
        return "".join(iter(self.readline, ""))

    def __iter__(self):
        return iter(self.readline, "")


class Streams:
    """New stream objects on this process's descriptors, in place of those of the process that it was forked from."""

    def __init__(self, channel):
        self._channel = channel
        self._mark, self._marks = "", 0
        #: Copies of the pipes: a cell may redirect 1 and 2.
        self._pipes = [os.dup(1), os.dup(2)]
        self._own = {"stdin": AskedInput(channel.ask)}
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            stream = open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
            self._own[name] = self._own[f"__{name}__"] = stream
        for name, stream in self._own.items():
            setattr(sys, name, stream)
        builtins.input = self._input

    def begin_cell(self, mark):
        """`mark` starts our marks, so that the host can tell them from the guest's output.

        A stream that an earlier cell deleted is there again.
        """
        self._mark = mark
        for name, stream in self._own.items():
            if not hasattr(sys, name):
                setattr(sys, name, stream)

    def mark(self):
        """Writes a new mark to both streams after all earlier output, and returns its number."""
        self.flush()
        self._marks += 1
        with self._channel.interrupts:
            for pipe in self._pipes:
                os.write(pipe, f"{self._mark}{self._marks}\3".encode())
        return self._marks

    def flush(self):
        """Flushes all output into the pipes before the next event is sent."""
        flush()

    def _input(self, prompt="", /):
        self.flush()
        line = self._channel.ask(str(prompt))
        if line is None:
            raise EOFError("input() got no answer: no on_input callback, or it returned None")
        return line


def flush():
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        try:
            getattr(sys, name).flush()
        except Exception:  # deleted or replaced by the guest, or closed
            pass


def end_fork(error):
    """Ends a process that the guest forked when it reaches the end of the cell, as a script would end."""
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    elif error is not None:
        status = 1
        try:
            sys.stderr.write(describe(error)["traceback"])
        except Exception:  # deleted or replaced by the guest, or closed
            pass
    flush()
    os._exit(status & 0xFF)
