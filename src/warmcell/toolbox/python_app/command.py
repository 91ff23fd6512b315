"""Runs one command line: parses it like CPython, runs the program as `__main__`, returns its exit status."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import io
import linecache
import os
import random
import runpy
import sys
import time
import traceback
import types
from types import CodeType

import preload

USAGE = """usage: python3 [option] ... [-c cmd | -m mod | file | -] [arg] ...
CPython in a WebAssembly sandbox: the standard library, files under the mounted directories;
no threads, processes or sockets.
"""
FLAGS_WITHOUT_EFFECT = set("bBdEiIOPqsSuvx")
FLAGS_WITH_VALUE = set("WX")
SLEEP_SLICE = 0.02
OWN_MODULES = """
    app command event_loop preload wit_world componentize_py_runtime componentize_py_types componentize_py_async_support
""".split()

_real_sleep = time.sleep


class HardExit(BaseException):
    """os._exit: no handlers, no buffers."""

    def __init__(self, status: int) -> None:
        self.status = status


class UsageError(Exception):
    pass


def main(argv: list[str], env: dict[str, str], cwd: str, seed: bytes) -> int:
    try:
        prepare(env, cwd, seed)
        try:
            status = run_command_line(argv)
        finally:
            run_exit_handlers()
    except HardExit as end:
        return end.status & 0xFF
    return flush(status)


# ---- the state of one run ----


def prepare(env: dict[str, str], cwd: str, seed: bytes) -> None:
    """Replaces all state that the snapshot froze and a program can see."""
    os.environ.clear()
    os.environ.update(env)
    random.seed(seed)
    sys.stdin = text_stream(0, "r")
    sys.stdout = text_stream(1, "w")
    sys.stderr = text_stream(2, "w")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    time.sleep = sleep
    os._exit = hard_exit  # type: ignore[assignment]
    sys.executable = "/usr/bin/python3"
    with contextlib.suppress(OSError):
        os.chdir(cwd or "/")
    sys.path[:] = []
    sys.path_importer_cache.clear()
    sys.argv[:] = [""]
    sys.dont_write_bytecode = True
    for name in OWN_MODULES:
        sys.modules.pop(name, None)


def text_stream(descriptor: int, mode: str) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, mode + "b", closefd=False)
    buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    errors = "backslashreplace" if descriptor == 2 else "surrogateescape" if mode == "r" else "strict"
    newline = None if mode == "r" else "\n"
    stream = io.TextIOWrapper(buffered, encoding="utf-8", errors=errors, line_buffering=mode == "w", newline=newline)
    stream.mode = mode  # type: ignore[misc]
    return stream


def sleep(seconds: float, /) -> None:
    """In short steps: the host can stop the program only between them."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        _real_sleep(min(left, SLEEP_SLICE))


def hard_exit(status: int = 0) -> None:
    raise HardExit(status)


# ---- the command line ----


def run_command_line(argv: list[str]) -> int:
    try:
        return dispatch(argv[1:])
    except UsageError as error:
        sys.stderr.write(f"{error}\n{USAGE.splitlines()[0]}\nTry `python3 -h' for more information.\n")
        return 2


def dispatch(args: list[str]) -> int:
    at = 0
    while at < len(args) and args[at].startswith("-") and args[at] != "-":
        arg = args[at]
        if arg == "--version":
            return print_version()
        if arg == "--help":
            sys.stdout.write(USAGE)
            return 0
        if arg == "--":
            at += 1
            break
        if arg.startswith("--"):
            raise UsageError(f"unknown option {arg}")
        for i, letter in enumerate(arg[1:], 1):
            rest = [arg[i + 1 :]] if arg[i + 1 :] else args[at + 1 : at + 2]
            following = args[at + (1 if arg[i + 1 :] else 2) :]
            if letter in "cm" and not rest:
                raise UsageError(f"Argument expected for the -{letter} option")
            if letter == "c":
                return run_string(rest[0], following)
            if letter == "m":
                return run_module(rest[0], following)
            if letter == "V":
                return print_version()
            if letter == "h":
                sys.stdout.write(USAGE)
                return 0
            if letter in FLAGS_WITH_VALUE:
                at += 0 if arg[i + 1 :] else 1
                break
            if letter not in FLAGS_WITHOUT_EFFECT:
                raise UsageError(f"Unknown option: -{letter}")
        at += 1
    if at == len(args) or args[at] == "-":
        return run_stdin(args[at:])
    return run_file(args[at], args[at + 1 :])


def print_version() -> int:
    sys.stdout.write(f"Python {sys.version.split()[0]}\n")
    return 0


def run_string(source: str, args: list[str]) -> int:
    sys.argv[:] = ["-c", *args]
    sys.path.insert(0, "")
    remember_source("<string>", source)
    return execute(lambda main: compile(source, "<string>", "exec"))


def run_stdin(args: list[str]) -> int:
    sys.argv[:] = args or [""]
    sys.path.insert(0, "")
    source = sys.stdin.buffer.read()
    remember_source("<stdin>", source.decode("utf-8", "replace"))
    return execute(lambda main: compile(source, "<stdin>", "exec"))


def run_file(name: str, args: list[str]) -> int:
    sys.argv[:] = [name, *args]
    path = os.path.abspath(name)
    if os.path.isdir(path):
        sys.path.insert(0, path)
        path = os.path.join(path, "__main__.py")
    else:
        sys.path.insert(0, os.path.dirname(path))
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"python3: can't open file '{path}': {reason}\n")
        return 2

    def load(main: types.ModuleType) -> CodeType:
        main.__file__ = path
        return compile(source, path, "exec")

    return execute(load)


def run_module(name: str, args: list[str]) -> int:
    sys.argv[:] = ["-m", *args]
    sys.path.insert(0, os.getcwd())
    code = preload.runnable_code.get(name)
    if code is not None:
        sys.argv[0] = name

        def load(main: types.ModuleType) -> CodeType:
            main.__package__ = name if code.co_filename.endswith("__main__.py") else name.rpartition(".")[0]
            return code

        return execute(load)
    return run_program(lambda: runpy._run_module_as_main(name), run_module_error=name)  # type: ignore[attr-defined]


def remember_source(filename: str, source: str) -> None:
    """Makes tracebacks show the source of a program that is not a file."""
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)


# ---- running and failing ----


def execute(load: object) -> int:
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main

    def program() -> None:
        exec(load(main), main.__dict__)  # type: ignore[operator]  # noqa: S102 - this is an interpreter

    return run_program(program)


def run_program(program: object, run_module_error: str | None = None) -> int:
    if run_module_error is not None:
        sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        program()  # type: ignore[operator]
    except SystemExit as end:
        return exit_status(end)
    except HardExit:
        raise
    except BaseException as error:
        report(error)
        return 1
    return 0


def exit_status(end: SystemExit) -> int:
    code = end.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stdout.flush()
    sys.stderr.write(f"{code}\n")
    return 1


def report(error: BaseException) -> None:
    """The traceback without the frames of this file, through sys.excepthook if the program set one."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in ("command", "app", "runpy"):
        trace = trace.tb_next
    if trace is None and not isinstance(error, SyntaxError):
        trace = error.__traceback__
    error.__traceback__ = trace
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, trace)
        return
    traceback.print_exception(type(error), error, trace, file=sys.stderr)


def run_exit_handlers() -> None:
    try:
        atexit._run_exitfuncs()  # type: ignore[attr-defined]
    except Exception as error:
        report(error)


def flush(status: int) -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            if not stream.closed:
                stream.flush()
        except BrokenPipeError:
            pass
        except Exception:
            return status or 120
    return status
