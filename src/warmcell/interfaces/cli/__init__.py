"""The `warmcell` command. Data goes to stdout, everything else to stderr.

Nothing heavy is imported here: each subcommand brings in what it needs when it is called.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

from warmcell.core.light import suppress
from warmcell.lifetime import late_site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import SimpleNamespace

    from warmcell.pool.spawn import Early


_RARELY = 100_000


def main(argv: Sequence[str] | None = None, early: Early | None = None, is_site_due: bool = False) -> int:
    """Entry point; returns the exit status. Without `argv` the whole process is this command, and ends here.

    `early` is a manager's process that was started before this was loaded. `is_site_due`: this interpreter was started
    without `site`, which takes a quarter of its start, for those who have no use for it.

    What such a process loads stays until its end: the collector need not look at it again and again, and nobody has to
    take it apart.
    """
    if argv is not None:
        return _status(list(argv), early)
    gc.set_threshold(_RARELY)
    if is_site_due:
        late_site.is_due = True
        _be_called_warmcell()
    status = _status(sys.argv[1:], early)
    atexit._run_exitfuncs()
    _flush_or_silence()
    os._exit(status)


def _be_called_warmcell() -> None:
    """By `ps` and `pkill`, as whoever was started by its script is."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write("warmcell")


def _status(argv: list[str], early: Early | None) -> int:
    """Nothing that happens in here ends as a traceback."""
    try:
        status = _dispatch(argv, early)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except (Exception, KeyboardInterrupt) as error:
        return _status_of(error, argv)


def _status_of(error: BaseException, argv: list[str]) -> int:
    from warmcell.interfaces.cli.exits import BROKEN_PIPE, INTERRUPTED, UsageError
    from warmcell.interfaces.cli.voice import silence

    if isinstance(error, UsageError):
        _tell(argv, "sandbox.invalid_request", error.message, error.hint, "caller")
        return error.status
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        silence()
        return BROKEN_PIPE
    return _report_our_failure(argv, error)


def _dispatch(argv: list[str], early: Early | None) -> int:
    from warmcell.interfaces.cli.quick import needs_no_packages, read_run, read_sh

    plain, script = read_run(argv), read_sh(argv)
    if not needs_no_packages(plain, script):
        late_site.run_site()
    if plain is not None and plain.enforcer in ("auto", "native"):
        _start_ahead(early)
    elif script is not None:
        return _sh(script, early)
    elif early is not None:
        early.discard()
    if plain is not None:
        from warmcell.interfaces.cli.run import run

        return run(plain)
    from warmcell.interfaces.cli.parser import parse

    arguments = parse(argv)
    status: int = arguments.handler(arguments)
    return status


def _sh(script: SimpleNamespace, early: Early | None) -> int:
    _start_ahead(early, packages=_packages_with_wasmtime(early))
    from warmcell.backends.wasm.pool import program_pool

    program_pool().start_ahead()
    from warmcell.backends.wasm.toolbox_runner import look_ahead

    look_ahead("sh")
    from warmcell.interfaces.cli.shell import sh

    return sh(script)


def _packages_with_wasmtime(early: Early | None) -> str:
    """Beside our own package, as a rule. A manager that was told its order was told that place."""
    from warmcell.pool.spawn import CAGE_DIR

    beside = os.path.realpath(os.path.dirname(os.path.dirname(CAGE_DIR)))
    if (early is not None and early.was_told) or os.path.isdir(f"{beside}/wasmtime"):
        return beside
    from warmcell.core.errors import SandboxError
    from warmcell.toolbox.runtime import wasmtime_directory

    with suppress(SandboxError):  # told when it is needed
        return os.path.dirname(wasmtime_directory())
    return ""


def _start_ahead(early: Early | None, *, packages: str = "") -> None:
    """A zygote takes as long to load as we do: it can do so beside us. Elsewhere than on Linux there are none.

    With the worker that Python programs run in or, where `packages` has wasmtime, that of WebAssembly.
    """
    if early is None and sys.platform == "linux":
        from warmcell.languages.base import base_executable
        from warmcell.pool.spawn import start_early

        early = start_early(base_executable())
    if early is not None:
        from warmcell.pool.start import start_ahead

        start_ahead(early.interpreter, early, packages=packages)


def _tell(argv: list[str], code: str, message: str, hint: str | None, fault: str, retryable: bool = False) -> None:
    """An error that no result goes with, in the form that was asked for: programs read stdout, people read stderr."""
    own = argv[: argv.index("--")] if "--" in argv else argv  # what follows is the program's
    if "--json" not in own:
        from warmcell.interfaces.cli.voice import say_error

        say_error(message, hint)
        return
    from warmcell.interfaces.cli.render import print_json

    plain = {"code": code, "message": message, "hint": hint, "fault": fault, "retryable": retryable}
    print_json({"status": "error", "error": plain})


def _report_our_failure(argv: list[str], error: BaseException) -> int:
    """A guest's own status can be anything, so a failure of ours must never look like Python's exit status 1."""
    from warmcell.core.errors import SandboxError
    from warmcell.interfaces.cli.exits import OUR_FAILURE

    if isinstance(error, SandboxError):
        _tell(argv, error.code, error.message, error.hint, error.fault, error.retryable)
    elif isinstance(error, OSError):
        _tell(argv, "sandbox.error", f"{error.strerror or error}".lower(), None, "host")
    else:
        hint = "set WARMCELL_DEBUG=1 for the traceback"
        _tell(argv, "sandbox.error", f"unexpected {type(error).__name__}: {error}", hint, "host")
    if os.environ.get("WARMCELL_DEBUG") == "1":
        raise error
    _flush_or_silence()
    return OUR_FAILURE


def _flush_or_silence() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            from warmcell.interfaces.cli.voice import silence

            silence()
