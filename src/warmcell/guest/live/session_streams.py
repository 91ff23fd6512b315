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


def install(channel):
    """New ones on this process's own descriptors, whatever the process that it was forked from had on them."""
    sys.stdin = AskedInput(channel.ask)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)

    def input(prompt="", /):
        flush()
        line = channel.ask(str(prompt))
        if line is None:
            raise EOFError("nobody answers input() in this session")
        return line

    builtins.input = input


def flush():
    """Everything that was printed is in the pipes before the host hears of what came after it."""
    for stream in {id(stream): stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)}.values():
        try:
            stream.flush()
        except Exception:  # the guest's own object, or closed: it has nothing left to say
            continue


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
