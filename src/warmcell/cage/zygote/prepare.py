"""Prepares an interpreter before it forks guests."""

from __future__ import annotations

import _imp
import sys
from _frozen_importlib_external import SourceFileLoader  # as importlib.machinery has it, which loads more
from types import ModuleType

from ..bundle import stop_using
from ..failure import CageError, step
from ..fast_imports import signal
from ..linux import fast_ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence


def load_worker(directory: str, with_site: bool, preload: Sequence[str]) -> ModuleType:
    """Run the guest's worker module and let it import the modules of guests."""
    sys.modules["warmcell_interpreter_exit"] = _load_file(directory, "interpreter_exit")
    worker = _load_file(directory, "worker")
    del sys.modules["warmcell_interpreter_exit"]  # a new interpreter would not have it
    problem = worker.prepare(with_site, list(preload))
    if problem is not None:
        step_name, what = problem
        raise CageError(step_name, 0, what)
    return worker


def load_wasm_worker(directory: str, packages: str, is_for_one: bool) -> ModuleType:
    """Import the WebAssembly worker and its runtime, the package wasmtime in `packages`."""
    # The paths are kept: workers load more from both when they run Python.
    sys.path[:] = [directory.rpartition("/")[0], *sys.path, packages]
    try:
        __import__("wasm.forked")
        worker = sys.modules["wasm.forked"]
        worker.prepare(packages, is_for_one)
    except Exception as error:
        raise CageError("load worker", 0, f"{type(error).__name__}: {error}") from None
    return worker


def _load_file(directory: str, name: str) -> ModuleType:
    """Run one of our files as a module that cannot be imported."""
    module = ModuleType(f"warmcell_{name}")
    path = f"{directory}/{name}.py"
    with step("load worker", path):
        code = SourceFileLoader(module.__name__, path).get_code(module.__name__)
    if code is None:
        raise CageError("load worker", 0, path)
    # Guests see tracebacks, and must not see our paths.
    _imp._fix_co_filename(code, f"<warmcell {name}>")  # type: ignore[attr-defined]
    exec(code, module.__dict__)  # noqa: S102  # our own file, by its path
    return module


def load_common_modules() -> None:
    """Load modules of the standard library that many programs import, but the cage does not."""
    for name in ("importlib.machinery", "typing", "socket", "json", "threading", "ctypes"):
        __import__(name)


def hide_modules() -> None:
    """Remove our modules from sys.modules. They stay in use; nothing of ours may be imported after this."""
    stop_using()
    for name in [name for name in sys.modules if name == "cage" or name.startswith("cage.")]:
        _hidden.append(sys.modules.pop(name))


_hidden: List[ModuleType] = []
_LOADER_PATH = b"LD_LIBRARY_PATH="


def hide_command_line() -> None:
    """Overwrite the command line and LD_LIBRARY_PATH, which guests, as forks, would see in /proc/self."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    arguments, arguments_end, variables, variables_end = (int(field) for field in fields[45:49])
    title = b"python3\0main.py\0"
    if arguments_end - arguments > len(title):
        fast_ctypes.write_memory(arguments, title.ljust(arguments_end - arguments, b"\0"))
    # In place: libc's `environ` points into this block.
    block = fast_ctypes.read_memory(variables, variables_end - variables)
    start = (b"\0" + block).find(b"\0" + _LOADER_PATH)
    if start >= 0:
        fast_ctypes.write_memory(variables + start, bytes(block.index(b"\0", start) - start))


def reset_signals() -> None:
    """Reset signals that the caller ignored or blocked, as in background jobs and under nohup."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals():
        if number not in (signal.SIGPIPE, signal.SIGXFSZ) and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
