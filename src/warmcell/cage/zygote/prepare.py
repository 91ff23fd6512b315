"""What an interpreter does once before it serves as a zygote, so that its forks find it done."""

from __future__ import annotations

import _imp
import sys
from _frozen_importlib_external import SourceFileLoader  # where importlib.machinery has it from, with more to load
from types import ModuleType

from ..bundle import use_no_more
from ..failure import CageError, step
from ..light import signal
from ..linux import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence


def load_worker(directory: str, with_site: bool, preload: Sequence[str]) -> ModuleType:
    """Executes the guest-side worker and lets it import what runs will need."""
    sys.modules["warmcell_ending"] = _loaded(directory, "ending")
    worker = _loaded(directory, "worker")
    del sys.modules["warmcell_ending"]  # as a new interpreter would not have it
    problem = worker.prepare(with_site, list(preload))
    if problem:
        raise CageError("preload", 0, problem)
    return worker


def load_wasm_worker(directory: str, packages: str, is_for_one: bool) -> ModuleType:
    """Imports the worker for WebAssembly, and with it the runtime, which is the package wasmtime in `packages`."""
    # They stay: of both a worker loads more when it is asked to run Python.
    sys.path[:] = [directory.rpartition("/")[0], *sys.path, packages]
    try:
        __import__("wasm.forked")
        worker = sys.modules["wasm.forked"]
        worker.prepare(packages, is_for_one)
    except Exception as error:
        raise CageError("load worker", 0, f"{type(error).__name__}: {error}") from None
    return worker


def _loaded(directory: str, name: str) -> ModuleType:
    """One file of ours, as a module of its own that nobody can import."""
    module = ModuleType(f"warmcell_{name}")
    path = f"{directory}/{name}.py"
    with step("load worker", path):
        code = SourceFileLoader(module.__name__, path).get_code(module.__name__)
    if code is None:
        raise CageError("load worker", 0, path)
    # Guests see tracebacks, and have no business with our paths.
    _imp._fix_co_filename(code, f"<warmcell {name}>")  # type: ignore[attr-defined]
    exec(code, module.__dict__)  # noqa: S102  # our own file, by its path
    return module


def load_what_many_import() -> None:
    """Modules of the standard library that programs begin with, and that we ourselves do without."""
    for name in ("importlib.machinery", "typing", "socket", "json", "threading", "ctypes"):
        __import__(name)


def hide_modules() -> None:
    """What a new interpreter would not have. They stay in use: nothing of ours is imported after this."""
    use_no_more()
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
        foreign.write_memory(start, title.ljust(end - start, b"\0"))


def forget_callers_signals() -> None:
    """What the caller ignored or blocked (a background job, a nohup) is its own affair, not its guests'."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals():
        if number not in (signal.SIGPIPE, signal.SIGXFSZ) and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
