"""The `warmcell` command. Data goes to stdout, everything else to stderr.

Imports little: each subcommand imports what it needs when it is called.
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

    from warmcell.core.errors import SandboxError
    from warmcell.pool.prestarted_manager import PrestartedManager


_GC_THRESHOLD = 100_000


def main(argv: Sequence[str] | None = None, early: PrestartedManager | None = None, is_site_due: bool = False) -> int:
    """Entry point; returns the exit status. Without `argv` it runs the command and exits the process.

    `early` is a manager process that was started before this module was imported. `is_site_due`: the interpreter was
    started with -S to save time; `late_site` runs `site` if it is needed.

    The garbage collector is slowed down and interpreter shutdown is skipped: the process is short-lived.
    """
    if argv is not None:
        return _status(list(argv), early)
    gc.set_threshold(_GC_THRESHOLD)
    if is_site_due:
        late_site.is_due = True
        _set_process_name()
    status = _status(sys.argv[1:], early)
    atexit._run_exitfuncs()
    _flush_or_silence()
    os._exit(status)


def _set_process_name() -> None:
    """Show this process as "warmcell" in `ps`, as when started by the script."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write("warmcell")


def _status(argv: list[str], early: PrestartedManager | None) -> int:
    """Run the command; turn exceptions into messages and exit statuses."""
    try:
        status = _dispatch(argv, early)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except (Exception, KeyboardInterrupt) as error:
        return _status_of(error, argv)


def _status_of(error: BaseException, argv: list[str]) -> int:
    from warmcell.core.errors import InvalidRequest, PolicyViolation
    from warmcell.interfaces.cli.exits import BROKEN_PIPE, INTERRUPTED, USAGE, UsageError
    from warmcell.interfaces.cli.messages import OutputLost, silence

    if isinstance(error, OutputLost):
        error = error.error
    if isinstance(error, InvalidRequest | PolicyViolation | UsageError):
        _report_error(argv, InvalidRequest(error.message, hint=error.hint))
        return USAGE
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        silence()
        return BROKEN_PIPE
    return _report_our_failure(argv, error)


def _dispatch(argv: list[str], early: PrestartedManager | None) -> int:
    from warmcell.interfaces.cli.fast_parser import needs_no_packages, read_run, read_sh

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

        _set_quiet(plain.quiet)
        return run(plain)
    from warmcell.interfaces.cli.parser import parse

    arguments = parse(argv)
    _set_quiet(arguments.quiet)
    status: int = arguments.handler(arguments)
    return status


def _sh(script: SimpleNamespace, early: PrestartedManager | None) -> int:
    _start_ahead(early, packages=_packages_with_wasmtime(early))
    from warmcell.backends.wasm.pool import program_pool

    program_pool().start_ahead()
    from warmcell.backends.wasm.toolbox_runner import prefetch

    prefetch("sh")
    from warmcell.interfaces.cli.wasm_script import sh

    _set_quiet(script.quiet)
    return sh(script)


def _set_quiet(is_quiet: bool) -> None:
    from warmcell.interfaces.cli.messages import set_quiet

    set_quiet(is_quiet)


def _packages_with_wasmtime(early: PrestartedManager | None) -> str:
    """The directory with wasmtime: usually that of our own package, which a prestarted manager was given."""
    from warmcell.pool.prestarted_manager import CAGE_DIR

    beside = os.path.realpath(os.path.dirname(os.path.dirname(CAGE_DIR)))
    if (early is not None and early.has_order) or os.path.isdir(f"{beside}/wasmtime"):
        return beside
    from warmcell.core.errors import SandboxError
    from warmcell.toolbox.runtime import wasmtime_directory

    with suppress(SandboxError):  # reported when it is needed
        return os.path.dirname(wasmtime_directory())
    return ""


def _start_ahead(early: PrestartedManager | None, *, packages: str = "") -> None:
    """Start a zygote in parallel with our own loading, which takes about as long. Linux only.

    It loads the Python worker, or the WebAssembly worker if `packages` has wasmtime.
    """
    if early is None and sys.platform == "linux":
        from warmcell.lifetime.host_program import base_executable
        from warmcell.pool.prestarted_manager import start_early

        early = start_early(base_executable())
    if early is not None:
        from warmcell.pool.manager_process import start_ahead

        start_ahead(early.interpreter, early, packages=packages)


def _report_error(argv: list[str], error: SandboxError) -> None:
    """Report an error without a result: as JSON on stdout with --json, else on stderr."""
    own = argv[: argv.index("--")] if "--" in argv else argv  # the rest is for the guest's program
    if "--json" not in own:
        from warmcell.interfaces.cli.messages import say_error

        say_error(error.message, error.hint)
        return
    from warmcell.interfaces.cli.render import error_to_plain, print_json

    print_json({"status": "error", "error": error_to_plain(error)})


def _report_our_failure(argv: list[str], error: BaseException) -> int:
    """Exit with 125, not 1: a guest may exit with 1."""
    from warmcell.core.errors import SandboxError
    from warmcell.interfaces.cli.exits import OUR_FAILURE

    if isinstance(error, SandboxError):
        _report_error(argv, error)
    elif isinstance(error, OSError):
        place = f": {error.filename!r}" if error.filename else ""
        _report_error(argv, SandboxError(f"{error.strerror or error}".lower() + place))
    else:
        hint = "set WARMCELL_DEBUG=1 for the traceback"
        _report_error(argv, SandboxError(f"unexpected {type(error).__name__}: {error}", hint=hint))
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
            from warmcell.interfaces.cli.messages import silence

            silence()
