"""Request models for processes, sessions, ports, files and forks of a sandbox."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from warmcell.interfaces.serve.v1.models import WHOLE, Below, Code, Directory, Plain, Seconds, Strict, Variables

Cells = Annotated[int, Field(ge=1, le=65_535), WHOLE]
PortNumber = Annotated[int, Field(ge=1, le=65_535), WHOLE]
CommandLine = Annotated[
    list[Plain],
    Field(
        min_length=1, max_length=1000, json_schema_extra={"prefixItems": [{"type": "string", "pattern": r"^[^\x00]+$"}]}
    ),
]
Identity = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Word = Annotated[str, Field(min_length=1, max_length=200)]
Metadata = Annotated[dict[str, str], Field(max_length=64)]
Lifetime = Annotated[float, Field(ge=1, le=31_622_400)]


class TerminalBody(Strict):
    """Columns and rows."""

    cols: Cells
    rows: Cells


class SpawnBody(Strict):
    """`command`: a shell script, or a list of a program and its arguments. Without `timeout` it may run as long as the
    sandbox; with `pty` it has a terminal, and all output is `stdout`."""

    command: Code | CommandLine
    cwd: Directory | None = None
    env: Variables = Field({})
    pty: TerminalBody | None = None
    stdin: bool = True
    timeout: Seconds | None = None


class SignalBody(Strict):
    """The number of the signal: 2 is SIGINT, 15 SIGTERM."""

    signal: Annotated[int, Field(ge=1, le=64), WHOLE]


class SessionBody(Strict):
    """A stateful interpreter: `python`, `javascript` or `command` (bash)."""

    language: str = "python"
    cwd: Directory | None = None
    env: Variables = Field({})


class CellBody(Strict):
    """`answers_input`: the response is a stream with `input` events; the client posts each answer to `.../input`."""

    code: Code
    timeout: Seconds | None = None
    answers_input: bool = False


class InputBody(Strict):
    text: str


class BranchBody(Strict):
    """`reseed`: the branch gets new random seeds."""

    reseed: bool = True
    lifetime: Lifetime = 3600
    metadata: Metadata = Field({})


class ForkBody(Strict):
    """A fork of the present files, or of a snapshot."""

    snapshot: Identity | None = None
    lifetime: Lifetime = 3600
    metadata: Metadata = Field({})


class RestoreBody(Strict):
    snapshot: Identity


class PortBody(Strict):
    port: PortNumber


class DirectoryBody(Strict):
    """`parents`: create parent directories, and accept an existing directory."""

    path: Below
    parents: bool = False


class PatchBody(Strict):
    """A unified diff, or the format of coding agents (`*** Begin Patch`)."""

    patch: Annotated[str, Field(min_length=1)]
    path: Directory = "."


class DestinationBody(Strict):
    """`domain`: a name, `*.name`, `*` or an IP address. Without `ports` and `ports_from`, on every port."""

    domain: Annotated[str, Field(min_length=1, max_length=300)]
    ports: Annotated[list[PortNumber], Field(max_length=1000)] = Field([])
    ports_from: PortNumber | None = None
    methods: Annotated[list[Word], Field(max_length=100)] | None = None
    path_prefixes: Annotated[list[Word], Field(max_length=100)] | None = None


class NetworkBody(Strict):
    """What the sandbox may reach from now on. `allow: null`: all that it was made with; `[]`: nothing."""

    allow: Annotated[list[DestinationBody], Field(max_length=1000)] | None
    deny: Annotated[list[DestinationBody], Field(max_length=1000)] = Field([])


class PackagesBody(Strict):
    """Names with versions in the syntax of pip or npm (`manager`); no URLs and no options."""

    packages: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=100)]
    manager: Literal["pip", "npm"] = "pip"
