"""The program that Warmcell is a part of: what it must be for us to start processes and wait for them.

Looked at before anything is started: a frozen program started in an interpreter's place would run itself, again and
again, and primitives that somebody replaced lose output or never wake up.
"""

from __future__ import annotations

import os
import sys

from warmcell.cage.environment import CHILD_MARK as CHILD_MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from warmcell.core.errors import BackendUnavailable

#: What such a child says last.
NOT_AN_INTERPRETER = "this program is no Python interpreter, and was started as one by Warmcell"

_INTERPRETERS = ("python", "pypy", "graalpy")
_ASK_FOR_PATH = (
    "name one: ProcessConfig(python_path='/usr/bin/python3'), or `python -m warmcell` of an installed Python"
)
#: Modules that our threads, sockets and children rely on, by the names that monkey patches have for them.
_RELIED_ON = ("socket", "select", "threading", "thread", "os", "subprocess", "signal", "queue", "time")


def _refusal(message: str, hint: str) -> BackendUnavailable:
    from warmcell.core.errors import BackendUnavailable  # only then: this is loaded before all the rest

    return BackendUnavailable(message, hint=hint)


def base_interpreter() -> str:
    """The interpreter that runs this program, or that its virtual environment was made from. Not a resolved path."""
    return _known(getattr(sys, "_base_executable", None) or sys.executable or "")


def own_interpreter() -> str:
    """The interpreter that runs this program, with the packages that it sees."""
    return _known(sys.executable or "")


def _known(path: str) -> str:
    """By what the program says of itself and by its name; it is never started to find out."""
    if getattr(sys, "frozen", False):
        raise _refusal(
            f"this is a frozen program: {path} is the program itself and no Python interpreter", hint=_ASK_FOR_PATH
        )
    if not path:
        raise _refusal("this program does not know its Python interpreter", hint=_ASK_FOR_PATH)
    if not os.path.basename(path).lower().lstrip(".").startswith(_INTERPRETERS):
        raise _refusal(f"Python is embedded in {path}, which is no interpreter", hint=_ASK_FOR_PATH)
    return path


def check() -> None:
    """Raises where runs would hang or lose output. Costs a few look-ups, and so is asked before every run."""
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


def start_daemon(target: Callable[..., object], *args: object, name: str = "warmcell") -> threading.Thread:
    """A thread that nobody waits for at exit; a typed error where there is none to be had."""
    import threading

    from warmcell.core.errors import ExecutionFailed

    try:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
    except RuntimeError as error:
        hint = "raise the limit on processes (`ulimit -u`), or run less at once"
        raise subinterpreter_refusal(error) or ExecutionFailed(
            f"could not start a thread: {error}", hint=hint
        ) from None
    return thread


def subinterpreter_refusal(error: RuntimeError) -> BackendUnavailable | None:
    """What to say where `error` is that this interpreter is not the main one, and may not start what others may."""
    if "subinterpreter" not in str(error).replace("(sub)", "sub"):
        return None
    return _refusal(
        f"this is a subinterpreter, and some things are refused to it: {error}",
        hint="run() and execute_blocking with enforcer 'native' work there; use the rest in the main interpreter",
    )


def _archive_around(path: str) -> str:
    """The file that stands where a directory above `path` should, if there is one."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    return path if os.path.isfile(path) else ""


_archive = "" if os.path.exists(__file__) else _archive_around(__file__)


def _refuse_patched(who: str, is_patched: object) -> None:
    assert callable(is_patched)
    patched = [name for name in _RELIED_ON if is_patched(name)]
    if patched:
        raise _refusal(
            f"{who} has patched {', '.join(patched)} in this program, which Warmcell's threads and sockets rely on",
            hint=f"run Warmcell in a process without {who}'s patches: `python -m warmcell run --json ...`, or a worker "
            "of your own",
        )
