"""Checks the program that Warmcell is part of, before anything is started.

A frozen program started as an interpreter would start itself again and again. Monkey-patched primitives lose output or
never wake up.
"""

from __future__ import annotations

import os
import sys

import warmcell.cage
from warmcell.cage.environment import CHILD_MARK as CHILD_MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from warmcell.core.errors import BackendUnavailable, SandboxError

#: The last message of a child that is not an interpreter.
NOT_AN_INTERPRETER = "this program is not a Python interpreter, but Warmcell started it as one"

#: Like `python -m MODULE`. Its first two arguments are the directory of the package, and the module.
_RUN_MODULE = (
    "import runpy, sys; root, module = sys.argv[1:3]; del sys.argv[1:3];"
    " root in sys.path or sys.path.insert(0, root); runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
_INTERPRETERS = ("python", "pypy", "graalpy")
_ASK_FOR_PATH = (
    "name one: ProcessConfig(python_path='/usr/bin/python3'), or `python -m warmcell` of an installed Python"
)
#: Modules that our threads, sockets and children rely on, by their names in monkey patches.
_RELIED_ON = ("socket", "select", "threading", "thread", "os", "subprocess", "signal", "queue", "time")


def _refusal(message: str, hint: str) -> BackendUnavailable:
    from warmcell.core.errors import BackendUnavailable  # imported late: this module is loaded before all others

    return BackendUnavailable(message, hint=hint)


def base_interpreter() -> str:
    """The interpreter that runs this program or that its virtual environment was created from; may be a link."""
    return _check_interpreter(getattr(sys, "_base_executable", None) or sys.executable or "")


def own_interpreter() -> str:
    """The interpreter that runs this program, with the packages that it sees."""
    return _check_interpreter(sys.executable or "")


def command_of_module(module: str) -> list[str]:
    """A command that runs a module of ours in another process, from the same package as this process."""
    package = os.path.dirname(os.path.abspath(warmcell.cage.__path__[0]))
    return [own_interpreter(), "-c", _RUN_MODULE, os.path.dirname(package), module]


def _check_interpreter(path: str) -> str:
    """Raises if `path` is not a Python interpreter, judged by `sys.frozen` and its name. Never starts it."""
    if getattr(sys, "frozen", False):
        raise _refusal(
            f"this is a frozen program: {path} is the program itself, not a Python interpreter", hint=_ASK_FOR_PATH
        )
    if not path:
        raise _refusal("the Python interpreter of this program is unknown: sys.executable is empty", hint=_ASK_FOR_PATH)
    if not os.path.basename(path).lower().lstrip(".").startswith(_INTERPRETERS):
        raise _refusal(f"Python is embedded in {path}, which is not an interpreter", hint=_ASK_FOR_PATH)
    return path


def check() -> None:
    """Raises if runs would hang or lose output. Fast enough to be called before every run."""
    modules = sys.modules
    if _archive:
        raise _refusal(
            f"Warmcell was imported from an archive ({_archive}), and what it starts must be files",
            hint="install it with pip, or have the archive unpack itself (shiv does, and pex with --venv)",
        )
    if "gevent.monkey" in modules:
        _refuse_patched("gevent", modules["gevent.monkey"].is_module_patched)
    if "eventlet.patcher" in modules:
        _refuse_patched("eventlet", modules["eventlet.patcher"].is_monkey_patched)


def check_sockets() -> None:
    """Raises if a tool such as pytest-socket has replaced `socket.socket`, which event loops need."""
    kind = getattr(sys.modules.get("socket"), "socket", None)
    where = getattr(kind, "__module__", "socket")
    if where != "socket":
        tool = where.partition(".")[0]
        raise _refusal(
            f"{tool} has replaced socket.socket in this program, which Warmcell's event loop relies on",
            hint="allow sockets there (pytest-socket: the `enable_socket` mark), or use run(), which needs none",
        )


def start_daemon(target: Callable[..., object], *args: object, name: str = "warmcell") -> threading.Thread:
    """Starts a thread that is not joined at exit. Raises a typed error if there are too many."""
    import threading

    try:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
    except RuntimeError as error:
        raise thread_failure(error) from None
    return thread


def thread_failure(error: RuntimeError) -> SandboxError:
    """The typed error for a thread that could not be started."""
    from warmcell.core.errors import ExecutionFailed

    hint = "raise the limit on processes (`ulimit -u`), or run fewer at once"
    return subinterpreter_refusal(error) or ExecutionFailed(f"could not start a thread: {error}", hint=hint)


def subinterpreter_refusal(error: RuntimeError) -> BackendUnavailable | None:
    """The typed error if `error` says that a subinterpreter may not do this."""
    if "subinterpreter" not in str(error).replace("(sub)", "sub"):
        return None
    return _refusal(
        f"this is a subinterpreter, which cannot do this: {error}",
        hint="run() and execute_blocking with enforcer 'native' work there; use the rest in the main interpreter",
    )


def _archive_around(path: str) -> str:
    """The archive that `path` is in: the nearest existing path above it, if that is a file."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    return path if os.path.isfile(path) else ""


_archive = "" if os.path.exists(__file__) else _archive_around(__file__)


def _refuse_patched(tool: str, is_patched: object) -> None:
    assert callable(is_patched)
    patched = [name for name in _RELIED_ON if is_patched(name)]
    if patched:
        raise _refusal(
            f"{tool} has patched {', '.join(patched)} in this program, which Warmcell's threads and sockets rely on",
            hint=f"run Warmcell in a process without {tool}'s patches: `python -m warmcell run --json ...`, or a "
            "worker of your own",
        )


_has_machine_to_itself = True


def share_machine() -> None:
    """Called by one of several processes that do the same work, such as a worker of a server."""
    global _has_machine_to_itself
    _has_machine_to_itself = False


def count_own_processors() -> int:
    """How many processors this program may keep busy; 1 after `share_machine`."""
    if not _has_machine_to_itself or not hasattr(os, "sched_getaffinity"):
        return 1
    return len(os.sched_getaffinity(0))


_known: dict[tuple[object, ...], str] = {}


def base_executable() -> str:
    """The real path of `base_interpreter()`.

    Raises `BackendUnavailable` if this program is frozen or embeds Python.
    """
    key = (getattr(sys, "_base_executable", None), sys.executable, getattr(sys, "frozen", False))
    if key not in _known:
        _known[key] = os.path.realpath(base_interpreter())
    return _known[key]
