"""What an interpreter does once before it serves as a zygote, so that its forks find it done."""

from __future__ import annotations

import _imp
import ctypes
import sys
from _frozen_importlib_external import SourceFileLoader  # where importlib.machinery has it from, with more to load
from types import ModuleType

from ..failure import CageError, step
from ..light import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence


def load_worker(path: str, with_site: bool, preload: Sequence[str]) -> ModuleType:
    """Executes the guest-side worker as a module of its own and lets it import what runs will need."""
    worker = ModuleType("warmcell_worker")
    with step("load worker", path):
        code = SourceFileLoader("warmcell_worker", path).get_code("warmcell_worker")
    if code is None:
        raise CageError("load worker", 0, path)
    # Guests see tracebacks, and have no business with our paths.
    _imp._fix_co_filename(code, "<warmcell>")  # type: ignore[attr-defined]
    exec(code, worker.__dict__)  # noqa: S102  # our own file, by its path
    problem = worker.prepare(with_site, list(preload))
    if problem:
        raise CageError("preload", 0, problem)
    return worker


def load_what_many_import() -> None:
    """Modules of the standard library that programs begin with, and that we ourselves do without."""
    for name in ("importlib.machinery", "typing", "socket", "json", "threading"):
        __import__(name)


def hide_modules() -> None:
    """What a new interpreter would not have. They stay in use: nothing of ours is imported after this."""
    for name in [name for name in sys.modules if name == "cage" or name.startswith("cage.")]:
        _hidden.append(sys.modules.pop(name))


_hidden: List[ModuleType] = []


def hide_command_line() -> None:
    """Guests are forks of this process: its arguments would show them where Warmcell is installed."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    title = b"python3\0main.py\0"
    if end - start > len(title):
        ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)


def forget_callers_signals() -> None:
    """What the caller ignored or blocked (a background job, a nohup) is its own affair, not its guests'."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals():
        if number not in (signal.SIGPIPE, signal.SIGXFSZ) and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
