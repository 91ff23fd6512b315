"""Runs commands of the toolbox: a shell with its tools, node, git and python3, each in a fresh instance."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress

from warmcell.backends.wasm.module_cache import shared_cache
from warmcell.backends.wasm.module_loading import Load, Loader
from warmcell.backends.wasm.module_source import ModuleSource
from warmcell.backends.wasm.pool import program_pool
from warmcell.backends.wasm.run_request import DEFAULT_OPEN_FILES, Fetch, Preopen, RunRequest
from warmcell.backends.wasm.supervisor import Supervisor
from warmcell.core.errors import BackendUnavailable, CommandNotFound, SandboxError
from warmcell.core.late_log import LateLog
from warmcell.core.types import DEFAULT_OUTPUT_BYTES, ExecResult, check_text
from warmcell.lifetime.run import Run
from warmcell.runner.listening import Listener
from warmcell.toolbox.loader import PYTHON, TOOLBOX, find_artefact, module_of
from warmcell.toolbox.ready_made import has_ready_made

DEFAULT_MEMORY_MB = 512
#: What nearly every run of a module does: it starts, reads, prints.
_REHEARSALS = {
    TOOLBOX: ("sh", "-c", "echo . | cat | wc -c"),
    "node": ("node", "-e", "console.log({})"),
    "git": ("git", "--version"),
    PYTHON: ("python3", "-c", "import sys; sys.stdout.write('.')"),
}
_log = LateLog(__name__)


class ToolboxRunner:
    """Thread-safe. `close` it when done, or the supervisor that was given."""

    def __init__(self, supervisor: Supervisor | None = None) -> None:
        self._supervisor = supervisor or Supervisor()

    def run_command(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stdin: bytes = b"",
        memory_limit_mb: int = DEFAULT_MEMORY_MB,
        fuel: int | None = None,
        output_bytes: int = DEFAULT_OUTPUT_BYTES,
        preopens: Sequence[Preopen] = (),
        fetch: Fetch | None = None,
        file_bytes: int | None = None,
        cpu_seconds: float | None = None,
        open_files: int = DEFAULT_OPEN_FILES,
        run: Run | None = None,
        listener: Listener | None = None,
    ) -> ExecResult:
        """One command, no shell in between unless `argv` names one. `CommandNotFound` when there is no such command.

        `fetch` takes a request and gives a response, both JSON; without it networking is off. It is called in a
        thread of its own. A limit that ends the run raises, with the partial result, as in a backend.
        """
        request = RunRequest(
            argv=tuple(argv),
            timeout=timeout,
            memory_limit_mb=memory_limit_mb,
            env={**(env or {}), "PWD": check_text("cwd", cwd)},
            stdin=stdin,
            fuel=fuel,
            output_bytes=output_bytes,
            preopens=tuple(preopens),
            fetch=fetch,
            file_bytes=file_bytes,
            cpu_seconds=cpu_seconds,
            open_files=open_files,
            listener=listener,
        )
        source = command_module(request.argv[0])
        if source is None:
            raise CommandNotFound(request.argv[0])
        return self._supervisor.run(source, request, run or Run(), commands=command_module)

    def close(self) -> None:
        self._supervisor.close()


def look_ahead(command: str) -> None:
    """For a program that is about to run it: the module is read and checked while the program loads the rest."""
    with suppress(SandboxError):  # told when it is needed
        source = command_module(command)
        if source is not None:
            loader = Loader(program_pool(), shared_cache())
            loader.look_ahead(Load(source, needs_fuel=False, timeout=0))


def command_module(command: str) -> ModuleSource | None:
    """The module that runs a command, or None where there is no such command."""
    name = module_of(command)
    return _own_source(name) if name is not None else None


@functools.cache
def _own_source(name: str) -> ModuleSource:
    if name == PYTHON:
        return _python_source()
    artefact = find_artefact(name)
    return ModuleSource(
        "wasm", artefact.read, f"own:{artefact.sha256}", artefact.entry, is_own=True, rehearsal=_REHEARSALS[name]
    )


def _python_source() -> ModuleSource:
    """The interpreter: compiled it may have come with the wheel, else it is built once, which takes half a minute."""
    from warmcell.toolbox import python_component

    digest = python_component.component_digest()
    if not has_ready_made(digest):
        _python_built()
    return ModuleSource("component", _read_python, digest, "run", is_own=True, rehearsal=_REHEARSALS[PYTHON])


def _read_python() -> bytes:
    from warmcell.toolbox import python_component

    return python_component.read_component(_python_built())


def _python_built() -> str:
    from warmcell.toolbox import python_component

    try:
        return python_component.ensure_component(_log.info)
    except python_component.ComponentUnavailable as error:
        raise BackendUnavailable(f"python3 is not there: {error}", hint=python_component.REMEDY) from error
