"""The tools as data: names, descriptions for models, JSON schemas, hints. Pure module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warmcell.core.types import BackendCapabilities

MIN_TIMEOUT = 1
MAX_TIMEOUT = 300
MAX_LINES = 100_000
#: A file has at most one line per byte, and tools read at most 16 MiB of it.
MAX_FIRST_LINE = 1 << 24
MAX_NAMES = 20
DEFAULT_LINES = 2000


@dataclass(frozen=True, slots=True)
class Definition:
    """One tool. `parameters` and `answers` are the JSON schemas of its input and output."""

    name: str
    title: str
    description: str
    parameters: Mapping[str, Any]
    answers: Mapping[str, Any]
    is_read_only: bool = False
    is_destructive: bool = True
    is_idempotent: bool = False


def make_definitions(
    capabilities: BackendCapabilities,
    timeout_secs: float,
    has_ports: bool,
    only: Sequence[str] | None = None,
    stateful_languages: Sequence[str] = (),
    max_timeout: int = MAX_TIMEOUT,
) -> list[Definition]:
    """The tools of a sandbox with these capabilities, in the order in which a model should see them.

    `only` restricts the languages; `stateful_languages` keep an interpreter from call to call.
    """
    languages = [str(name) for name in capabilities.supported_languages if name != "wasm"]
    if only is not None:
        languages = [name for name in only if name in languages]
    usual = int(min(max(timeout_secs, MIN_TIMEOUT), max_timeout))
    timeout = number_schema("Seconds after which the run is stopped.", MIN_TIMEOUT, max_timeout, usual)
    tools = (
        [_run_code(languages, timeout, capabilities, [name for name in languages if name in stateful_languages])]
        if languages
        else []
    )
    if "command" in languages:
        tools.append(_run_command(timeout))
    tools += _file_tools()
    return [*tools, _expose_port()] if has_ports else tools


def network_words(capabilities: BackendCapabilities) -> str:
    """The network as a model must know it: exactly what it can reach, or it would try more or less than that."""
    if not capabilities.enforced_limits.network_isolation:
        return "the host's network"
    names = capabilities.network
    if not names:
        return "no network access (packages cannot be installed)"
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"network access to {', '.join(names[:MAX_NAMES])}{more} only, through the proxy that the environment names"


def _run_code(
    languages: Sequence[str],
    timeout: dict[str, Any],
    capabilities: BackendCapabilities,
    stateful_languages: Sequence[str],
) -> Definition:
    names = " and ".join(stateful_languages)
    where = f"in the work directory /work, with {network_words(capabilities)}"
    words = f"Each run starts afresh {where}; files stay, variables do not. "
    more: dict[str, Any] = {}
    if stateful_languages:
        words = (
            f"Code runs {where}. In {names} variables, imports and definitions stay from call to "
            "call, and the value of the last line is returned; with stdin, and in other languages, each run starts "
            "afresh. Files always stay. "
        )
        more["restart"] = {"type": "boolean", "description": "Forget the variables first.", "default": False}
    return Definition(
        "run_code",
        "Run code",
        f"Run a program in a sandbox and return its output. Languages: {', '.join(languages)}. {words}A non-zero "
        "exit_code is a result, not a failure of the tool. Print what you want to see.",
        object_schema(
            ["code"],
            code=text_schema("The whole program."),
            language=text_schema("What the code is written in.", enum=languages, default=languages[0]),
            stdin=text_schema("What the program reads from standard input."),
            timeout_secs=timeout,
            **more,
        ),
        _RUN_ANSWER,
    )


def _run_command(timeout: dict[str, Any]) -> Definition:
    return Definition(
        "run_command",
        "Run a shell command",
        "Run a shell command or script in the sandbox's work directory and return its output. Only files are kept "
        "from one call to the next; programs that still run when the command ends are stopped.",
        object_schema(
            ["command"],
            command=text_schema("The command line or script."),
            cwd=text_schema("Directory to start in, relative to the work directory.", default="."),
            stdin=text_schema("What the command reads from standard input."),
            timeout_secs=timeout,
        ),
        _RUN_ANSWER,
    )


def _file_tools() -> list[Definition]:
    path = text_schema("Path relative to the work directory.")
    first = number_schema("First line to return, from 1.", 1, MAX_FIRST_LINE, 1)
    most = number_schema("How many lines to return.", 1, MAX_LINES, DEFAULT_LINES)
    directory = text_schema("Directory relative to the work directory.", default=".")
    patch_words = "A unified diff, or a patch from '*** Begin Patch' to '*** End Patch'."
    return [
        Definition(
            "read_file",
            "Read a file",
            "Return a text file of the work directory, all of it or some of its lines.",
            object_schema(["path"], path=path, first_line=first, max_lines=most),
            _answer(path=_STRING, content=_STRING, total_lines=_INTEGER, is_binary=_BOOLEAN, size=_INTEGER),
            is_read_only=True,
            is_destructive=False,
            is_idempotent=True,
        ),
        Definition(
            "write_file",
            "Write a file",
            "Create a file in the work directory or replace its content. Missing directories are created.",
            object_schema(["path", "content"], path=path, content=text_schema("The whole new content.")),
            _answer(path=_STRING, size=_INTEGER),
            is_idempotent=True,
        ),
        Definition(
            "list_files",
            "List files",
            "List a directory of the work directory.",
            object_schema(
                [],
                path=directory,
                recursive={"type": "boolean", "description": "Also the content of its directories.", "default": False},
            ),
            _answer(path=_STRING, entries={"type": "array", "items": _ENTRY}),
            is_read_only=True,
            is_destructive=False,
            is_idempotent=True,
        ),
        Definition(
            "apply_patch",
            "Apply a patch",
            "Change, create, move and delete files of the work directory by a patch: all of it or, when any part "
            "does not fit, nothing. The answer names each hunk that did not fit and why.",
            object_schema(["patch"], patch=text_schema(patch_words)),
            _answer(changes={"type": "array", "items": _CHANGE}, misfits={"type": "array", "items": _MISFIT}),
        ),
    ]


def _expose_port() -> Definition:
    return Definition(
        "expose_port",
        "Expose a port",
        "Make a TCP port reachable from the host's loopback on which something listens that run_code started and "
        "left running, and return its URL.",
        object_schema(["port"], port=number_schema("The port inside the sandbox.", 1, 65535, None)),
        _answer(url=_STRING, host=_STRING, port=_INTEGER, guest_port=_INTEGER),
        is_destructive=False,
        is_idempotent=True,
    )


_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_BOOLEAN = {"type": "boolean"}
_ENTRY = {"type": "object", "properties": {"path": _STRING, "kind": _STRING, "size": _INTEGER}, "required": ["path"]}
_CHANGE = {"type": "object", "properties": {"path": _STRING, "kind": _STRING}, "required": ["path", "kind"]}
_MISFIT = {
    "type": "object",
    "properties": {"path": _STRING, "hunk": {"type": ["integer", "null"]}, "reason": _STRING},
    "required": ["path", "reason"],
}


def _answer(**properties: Any) -> dict[str, Any]:
    """Every answer has a status. If it is not "success", `stderr` has the reason and `fault` the party at fault."""
    status = {"type": "string", "enum": ["success", "timeout", "memory_exceeded", "error"]}
    shared = {"status": status, "stderr": _STRING, "fault": _STRING, "truncated": _BOOLEAN}
    unknown = {"ignored_arguments": {"type": "array", "items": _STRING}}
    return {"type": "object", "properties": shared | properties | unknown, "required": ["status"]}


_RUN_ANSWER = _answer(
    stdout=_STRING,
    exit_code=_INTEGER,
    signal=_INTEGER,
    duration_ms=_INTEGER,
    execution_count=_INTEGER,
    value=_STRING,
    outputs={"type": "array", "items": {"type": "object", "additionalProperties": _STRING}},
    full_output={"type": "object", "additionalProperties": _STRING},
    denials={"type": "array", "items": {"type": "object", "additionalProperties": _STRING}},
    connections={"type": "array", "items": {"type": "object"}},
    usage={"type": "object"},
)


def object_schema(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def text_schema(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def number_schema(description: str, minimum: int, maximum: int, default: int | None) -> dict[str, Any]:
    rule: dict[str, Any] = {"type": "integer", "description": description, "minimum": minimum, "maximum": maximum}
    return rule if default is None else rule | {"default": default}
