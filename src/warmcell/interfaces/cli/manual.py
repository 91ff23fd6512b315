"""`warmcell man`: the manual page, and the same as JSON, generated from the parser."""

from __future__ import annotations

import argparse

from warmcell.core.records import dataclass
from warmcell.interfaces.cli.command_table import COMMANDS, EPILOGS, EXIT_STATUSES, INSPECT, RUN, SERVE
from warmcell.interfaces.cli.exits import OK
from warmcell.interfaces.cli.parser import build_parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ABOUT = """Runs code that you did not write in a sandbox: no network, no host files, no host environment, and limits on
time, memory, processes, disk and output. Data goes to stdout, everything else to stderr."""
VARIABLES = {
    "NO_COLOR": "if set, messages have no color",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "where 'serve' sends traces and metrics",
    "RAY_ADDRESS": "the cluster of 'serve --ray' and '--backend ray'",
    "TMPDIR": "where the files of sandboxes are, instead of /tmp",
    "WARMCELL_DEBUG": "1 prints the traceback of an internal error",
    "WARMCELL_STATE_KEY": "the key of 'serve --state', instead of --state-key: 64 hexadecimal digits",
    "WARMCELL_STORE_KEY": "the key that encrypts snapshots of workspaces: 64 hexadecimal digits",
    "WARMCELL_TOKEN": "the token of 'serve', 'mcp' and 'top', instead of --token",
    "XDG_CACHE_HOME": "where compiled modules, libraries and images are kept",
    "XDG_CONFIG_HOME": "where the file of tokens is kept",
    "XDG_DATA_HOME": "where workspaces are kept",
    "XDG_STATE_HOME": "where changes that were not committed are kept",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An option or an operand. `forms` are its names, with the value's name."""

    forms: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    role: str
    summary: str
    usage: str
    arguments: tuple[Argument, ...]
    notes: str


def man(arguments: argparse.Namespace) -> int:
    if arguments.json:
        from dataclasses import asdict

        from warmcell.interfaces.cli.render import print_json

        print_json([asdict(page) for page in pages()])
    else:
        print(troff(pages()), end="")
    return OK


def pages() -> list[Page]:
    """Every command of the parser as data."""
    subparsers = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return [_page(name, parser) for name, parser in subparsers.choices.items()]


def _page(name: str, parser: argparse.ArgumentParser) -> Page:
    role, summary, _ = COMMANDS[name]
    usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    shown = tuple(Argument(_forms(action), action.help or "") for action in parser._actions)
    return Page(name, role, summary, usage, shown, EPILOGS.get(name, ""))


def _forms(action: argparse.Action) -> tuple[str, ...]:
    value = _value(action)
    if not action.option_strings:
        return (value,)
    return tuple(f"{name} {value}".rstrip() for name in action.option_strings)


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        return "|".join(map(str, action.choices))
    name: Any = action.metavar or action.dest
    return str(name)


def troff(known: list[Page]) -> str:
    """The page for `man`, without a date, so that two builds are the same."""
    lines = ['.TH WARMCELL 1 "" "Warmcell" "User Commands"', ".SH NAME", "warmcell \\- run code in a sandbox"]
    lines += [".SH SYNOPSIS", ".B warmcell", "COMMAND [OPTION]...", ".SH DESCRIPTION", _escape(ABOUT)]
    for role in (RUN, SERVE, INSPECT):
        lines.append(f".SH {_escape(role.upper())}")
        for page in known:
            lines += _troff_command(page) if page.role == role else []
    lines += [".SH ENVIRONMENT"]
    for name, text in VARIABLES.items():
        lines += [".TP", f".B {name}", _escape(text)]
    return "\n".join([*lines, ".SH EXIT STATUS", ".nf", _escape(EXIT_STATUSES), ".fi", ""])


def _troff_command(page: Page) -> list[str]:
    lines = [f".SS warmcell {page.name}", f"{_escape(page.summary)}.", ".PP", f".B {_escape(page.usage)}"]
    for argument in page.arguments:
        lines += [".TP", f".B {_escape(', '.join(argument.forms))}", _escape(argument.help) or "\\&"]
    return [*lines, ".PP", ".nf", _escape(page.notes), ".fi"] if page.notes else lines


def _escape(text: str) -> str:
    """Escape text for troff: no command at the start of a line, no escape, and dashes that can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in escaped.split("\n"))
