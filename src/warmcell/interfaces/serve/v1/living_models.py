"""What clients send to processes, sessions, ports and forks of a sandbox, as pydantic models."""

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
Metadata = Annotated[dict[str, str], Field(max_length=64)]
Lifetime = Annotated[float, Field(ge=1, le=31_622_400)]


class TerminalBody(Strict):
    """Columns and rows."""

    cols: Cells
    rows: Cells


class SpawnBody(Strict):
    """`command`: text for the shell, or a program with its arguments. Without `timeout` it may run until the sandbox
    ends; with `pty` it has a terminal, whose output is all `stdout`."""

    command: Code | CommandLine
    cwd: Directory | None = None
    env: Variables = Field({})
    pty: TerminalBody | None = None
    stdin: bool = True
    timeout: Seconds | None = None


class SignalBody(Strict):
    """By its number: 2 is SIGINT, 15 SIGTERM."""

    signal: Annotated[int, Field(ge=1, le=64), WHOLE]


class SessionBody(Strict):
    """An interpreter that remembers: `python`, `javascript` or `command` (bash)."""

    language: str = "python"
    cwd: Directory | None = None
    env: Variables = Field({})


class CellBody(Strict):
    """`answers_input`: the client hears `input` events, so that the answer is a stream, and sends what was typed to
    `.../input`."""

    code: Code
    timeout: Seconds | None = None
    answers_input: bool = False


class InputBody(Strict):
    text: str


class BranchBody(Strict):
    """`reseed`: the branch draws other random numbers."""

    reseed: bool = True
    lifetime: Lifetime = 3600
    metadata: Metadata = Field({})


class ForkBody(Strict):
    """Of the files as they are now, or of a snapshot."""

    snapshot: Identity | None = None
    lifetime: Lifetime = 3600
    metadata: Metadata = Field({})


class RestoreBody(Strict):
    snapshot: Identity


class PortBody(Strict):
    port: PortNumber


class DirectoryBody(Strict):
    """With `parents` also the directories on the way, and one that exists is fine."""

    path: Below
    parents: bool = False


class PatchBody(Strict):
    """A unified diff, or what coding agents write (`*** Begin Patch`)."""

    patch: Annotated[str, Field(min_length=1)]
    path: Directory = "."


class PackagesBody(Strict):
    """Names with versions, as pip or npm (`manager`) takes them; no addresses, no options."""

    packages: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=100)]
    manager: Literal["pip", "npm"] = "pip"
