"""Runs toolbox commands: a shell with its tools, node, git and python3, each in a new instance."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress

from warmcell.backends.wasm.module_loader import LoadRequest, ModuleLoader, shared_cache
from warmcell.backends.wasm.pool import program_pool
from warmcell.backends.wasm.run_request import Fetch, ModuleSource, Preopen, RunRequest
from warmcell.backends.wasm.supervisor import Supervisor
from warmcell.core.errors import BackendUnavailable, CommandNotFound, SandboxError
from warmcell.core.slow_steps import report_slow_step
from warmcell.core.types import ExecResult, check_text
from warmcell.guest.wasm.protocol import RunLimits
from warmcell.lifetime.run import Run
from warmcell.runner.listening import Listener
from warmcell.toolbox.loader import PYTHON, TOOLBOX, find_artefact, has_shipped_module, module_of

#: Command lines that do what nearly every run does: start, read, print.
_REHEARSALS = {
    TOOLBOX: ("sh", "-c", "echo . | cat | wc -c"),
    "node": ("node", "-e", "console.log({})"),
    "git": ("git", "--version"),
    PYTHON: ("python3", "-c", "import sys; sys.stdout.write('.')"),
}
#: Modules that had to be built, and were.
_built: set[str] = set()


class ToolboxRunner:
    """Thread-safe. Close it, or the supervisor that was passed in, when done."""

    def __init__(self, supervisor: Supervisor | None = None) -> None:
        self._supervisor = supervisor or Supervisor()

    def run_command(
        self,
        argv: Sequence[str],
        limits: RunLimits,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stdin: bytes = b"",
        preopens: Sequence[Preopen] = (),
        fetch: Fetch | None = None,
        listener: Listener | None = None,
        run: Run | None = None,
    ) -> ExecResult:
        """Runs one command, without a shell unless `argv` names one. Raises `CommandNotFound`.

        `fetch` takes a request and returns a response, both JSON, and is called in its own thread; without it there
        is no network. A limit that ends the run raises an error with the partial result, as in a backend.
        """
        env = {**(env or {}), "PWD": check_text("cwd", cwd)}
        request = RunRequest(tuple(argv), limits, env, stdin, tuple(preopens), fetch, listener)
        run = run or Run()
        find = functools.partial(command_module, run=run)
        source = find(request.argv[0])
        if source is None:
            raise CommandNotFound(request.argv[0])
        return self._supervisor.run(source, request, run, commands=find)

    def close(self) -> None:
        self._supervisor.close()


def prefetch(command: str) -> None:
    """Reads and verifies the command's module in a thread while the calling program loads the rest."""
    with suppress(SandboxError):  # the run will report it
        source = command_module(command)
        if source is not None:
            loader = ModuleLoader(program_pool(), shared_cache())
            loader.prefetch(LoadRequest(source, needs_fuel=False))


def command_module(command: str, run: Run | None = None) -> ModuleSource | None:
    """The module of a command, or None if there is no such command. Cancelling `run` ends its build."""
    name = module_of(command)
    if name is None:
        return None
    source = _own_source(name)
    if name == PYTHON and name not in _built:
        if not has_shipped_module(source.digest):
            _build_python(run)
        _built.add(name)
    return source


@functools.cache
def _own_source(name: str) -> ModuleSource:
    if name == PYTHON:
        return _python_source()
    artefact = find_artefact(name)
    return ModuleSource(
        "wasm", artefact.read, f"own:{artefact.sha256}", artefact.entry, is_own=True, rehearsal=_REHEARSALS[name]
    )


def _python_source() -> ModuleSource:
    """The interpreter: ready-made in a wheel, otherwise built once, which takes half a minute."""
    from warmcell.toolbox import python_component

    def read() -> bytes:
        name = _build_python()
        try:
            return python_component.read_component(name)
        except python_component.ComponentUnavailable as error:  # damaged or removed since, and cannot be built again
            raise _no_python(error) from error

    digest = python_component.component_digest()
    return ModuleSource("component", read, digest, "run", is_own=True, rehearsal=_REHEARSALS[PYTHON])


def _build_python(run: Run | None = None) -> str:
    from warmcell.toolbox import python_component

    try:
        return python_component.ensure_component(report_slow_step, run)
    except python_component.ComponentUnavailable as error:
        raise _no_python(error) from error


def _no_python(error: Exception) -> BackendUnavailable:
    from warmcell.toolbox.python_component import REMEDY

    return BackendUnavailable(f"python3 is not available: {error}", hint=REMEDY)
