"""StepRun: a program to run for a build, in a cage whose root is kept; and the function that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from warmcell.core.records import dataclass, field
from warmcell.core.types import ExecResult
from warmcell.policy.model import SandboxPolicy

#: Called with "stdout" or "stderr" and the data, as it arrives.
OnOutput = Callable[[str, bytes], None]
#: Called with a function that ends the program, from any thread.
OnStart = Callable[[Callable[[], object]], object]


@dataclass(frozen=True, slots=True)
class StepRun:
    """One program. `upper` is a private directory with "upper" and "work": what the program writes is in "upper" then.

    `files` are written first, by absolute path; the program's own is executable.
    """

    layers: tuple[str, ...]
    upper: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    user: str
    policy: SandboxPolicy
    timeout: float
    files: Mapping[str, bytes] = field(default_factory=dict)
    on_output: OnOutput | None = None
    on_start: OnStart | None = None


#: Returns whatever the program's exit code is. Raises `CommandNotFound` if it could not be started.
RunProgram = Callable[[StepRun], ExecResult]


def find_runner() -> RunProgram:
    """The process backend, by name: a store is below it in the import law."""
    run: RunProgram = import_module("warmcell.backends.process.image_build").run_step
    return run
