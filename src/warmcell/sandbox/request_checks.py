"""Checks of what callers pass to a sandbox. `InvalidRequest` names the argument. Pure module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from warmcell.core.errors import InvalidRequest
from warmcell.core.request_checks import check_whole
from warmcell.core.types import ExecRequest, Language, check_env, check_text, check_timeout
from warmcell.sandbox.interface import NO_CALLBACKS, CellCallbacks, PtySize, SpawnOptions
from warmcell.sessions.cell_results import DisplayData
from warmcell.workspace.workspace import AnyPath

OnDisplay = Callable[[DisplayData], object]
OnInput = Callable[[str], object]
_MANAGERS = ("pip", "npm")
#: The largest number that a kernel has for a process.
_MAX_PID = (1 << 31) - 1
#: Shorter code cannot be refused for its length, so the check of a whole request is skipped.
_SHORT_CODE = 1 << 16


def check_argv(command: object, args: object) -> list[str]:
    name = check_text("command", command)
    if not name.strip():
        raise InvalidRequest("is empty", field="command")
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise InvalidRequest("must be a list of texts", field="args", hint='exec("ls", ["-l"]), or sh("ls -l")')
    return [name, *(check_text("args", item) for item in args)]


def check_spawn(
    command: object,
    is_followed: bool = False,
    *,
    cwd: AnyPath | None = None,
    env: Mapping[str, str] | None = None,
    pty: object = None,
    stdin: bool = True,
    timeout: float | None = None,
) -> SpawnOptions:
    if pty is not None and not isinstance(pty, PtySize):
        raise InvalidRequest(f"must be a PtySize, not {type(pty).__name__}", field="pty", hint="PtySize(80, 24)")
    variables = dict(check_env({} if env is None else env))
    seconds = None if timeout is None else check_timeout(timeout)
    return SpawnOptions(_spawn_command(command), cwd, variables, pty, bool(stdin), seconds, is_followed)


def check_pid(pid: object) -> int:
    return check_whole("pid", pid, 1, _MAX_PID)


def _spawn_command(command: object) -> str | tuple[str, ...]:
    if isinstance(command, str):
        if not check_text("command", command).strip():
            raise InvalidRequest("is empty", field="command")
        return command
    if not isinstance(command, Sequence) or isinstance(command, bytes) or not command:
        raise InvalidRequest(
            "must be text for the shell, or a list of a program and its arguments",
            field="command",
            hint='spawn("npm run dev"), or spawn(["python3", "-i"])',
        )
    argv = tuple(check_text("command", word) for word in command)
    if not argv[0]:
        raise InvalidRequest("the program has no name", field="command")
    return argv


def check_cell_code(code: object) -> str:
    """Check the code of a cell like that of any request."""
    if isinstance(code, str) and code.isascii() and "\0" not in code and len(code) < _SHORT_CODE and code.strip():
        return code
    request = ExecRequest(Language.PYTHON, code, 1.0)  # type: ignore[arg-type]
    assert isinstance(request.code, str)
    return request.code


def check_cell_callbacks(on_stdout: object, on_stderr: object, on_display: object, on_input: object) -> CellCallbacks:
    if on_stdout is on_stderr is on_display is on_input is None:
        return NO_CALLBACKS
    callbacks = {"on_stdout": on_stdout, "on_stderr": on_stderr, "on_display": on_display, "on_input": on_input}
    for name, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise InvalidRequest(f"must be callable, not {type(callback).__name__}", field=name)
    return CellCallbacks(**callbacks)  # type: ignore[arg-type]


def check_manager(manager: object) -> str:
    if manager not in _MANAGERS:
        raise InvalidRequest(f"must be one of {', '.join(_MANAGERS)}", field="manager")
    return str(manager)
