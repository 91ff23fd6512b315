"""The standard streams of a Python session: output in lines as on a terminal, input from whoever called."""

import builtins
import io
import os
import sys

from .session_errors import described


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
    """New ones on this process's own descriptors, whatever the process that it was forked from had on them."""

    def __init__(self, channel):
        self._channel = channel
        self._mark, self._marks = "", 0
        #: The pipes themselves: a cell may put something else at 1 and 2 for a while.
        self._pipes = [os.dup(1), os.dup(2)]
        sys.stdin = AskedInput(channel.ask)
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            stream = open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        builtins.input = self._input

    def begin_cell(self, mark):
        """`mark` is how the host recognises ours among what the guest prints."""
        self._mark = mark

    def mark(self):
        """The number of a new mark in both, behind all that was printed so far."""
        self.flush()
        self._marks += 1
        with self._channel.interrupts:
            for pipe in self._pipes:
                os.write(pipe, f"{self._mark}{self._marks}\3".encode())
        return self._marks

    def flush(self):
        """Everything that was printed is in the pipes before the host hears of what came after it."""
        flush()

    def _input(self, prompt="", /):
        self.flush()
        line = self._channel.ask(str(prompt))
        if line is None:
            raise EOFError("nobody answers input() in this session")
        return line


def flush():
    _flush(sys.stdout)
    _flush(sys.stderr)
    if sys.stdout is not sys.__stdout__ or sys.stderr is not sys.__stderr__:
        _flush(sys.__stdout__)
        _flush(sys.__stderr__)


def _flush(stream):
    try:
        stream.flush()
    except Exception:  # the guest's own object, or closed: it has nothing left to say
        pass


def end_fork(error):
    """A process that the guest forked has come to the end of the cell: it ends as a script would."""
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    elif error is not None:
        sys.stderr.write(described(error)["traceback"])
        status = 1
    flush()
    os._exit(status & 0xFF)
