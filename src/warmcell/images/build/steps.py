"""The steps of a build, as plain data, and the request to run a step's program. Dockerfiles are parsed into steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from warmcell.core.records import dataclass, field
from warmcell.core.types import ExecResult
from warmcell.policy.model import SandboxPolicy

SHELL = ("/bin/sh", "-c")
#: The PATH of images that do not set it.
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Run:
    """Run a command as the current user; its changes become a layer.

    A string is for the shell; a tuple is a program and its arguments. `env` has variables of this step alone. `script`,
    with an interpreter line, replaces the command.
    """

    command: str | tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    script: str = ""
    has_network: bool = True
    text: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy files of the context, or of another stage or image (`source`), into the image.

    `chown` is "user", "user:group" or numbers; `chmod` the mode of all files and directories. `inline` has the content
    of further files, by name. `unpacks`: unpack tar files, as ADD does.
    """

    sources: tuple[str, ...]
    destination: str
    source: str | None = None
    chown: str = ""
    chmod: int | None = None
    inline: Mapping[str, bytes] = field(default_factory=dict)
    unpacks: bool = False
    exclude: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Env:
    """Set variables for later steps and for programs of the image."""

    variables: Mapping[str, str]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Workdir:
    """Set the working directory, created if missing. A relative path is below the current one."""

    path: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class User:
    """Set the user of later steps and of programs: "name", "uid", "name:group" or "uid:gid"."""

    name: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Configure:
    """Change fields of the image's OCI configuration ("Cmd", "Labels", "StopSignal", ...).

    Labels, ports and volumes are added to the existing ones; other fields are replaced, or removed by None.
    """

    fields: Mapping[str, Any]
    text: str = ""


Step = Run | Copy | Env | Workdir | User | Configure


def describe(step: Step) -> str:
    """The step as a line of a Dockerfile."""
    if step.text:
        return step.text
    match step:
        case Run():
            return f"RUN {step.command if isinstance(step.command, str) else list(step.command)}"
        case Copy():
            return f"COPY {' '.join([*step.sources, *step.inline, step.destination])}"
        case Env():
            return "ENV " + " ".join(f"{name}={value}" for name, value in step.variables.items())
        case Workdir():
            return f"WORKDIR {step.path}"
        case User():
            return f"USER {step.name}"
        case Configure():
            return f"CONFIGURE {' '.join(step.fields)}"


#: Called with "stdout" or "stderr" and the data, as it arrives.
OnOutput = Callable[[str, bytes], None]
#: Called with a function that ends the program, from any thread.
OnStart = Callable[[Callable[[], object]], object]


@dataclass(frozen=True, slots=True)
class StepRun:
    """One program to run. `upper` is a private directory with "upper", which receives its changes, and "work".

    `files` are written first, by absolute path; the program's own file is made executable.
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


#: A non-zero exit code is a result; `CommandNotFound` if the program could not be started.
RunProgram = Callable[[StepRun], ExecResult]


def find_runner() -> RunProgram:
    """Import the process backend by name: it is above this room in the import law."""
    run: RunProgram = import_module("warmcell.backends.process.image_build").run_step
    return run
