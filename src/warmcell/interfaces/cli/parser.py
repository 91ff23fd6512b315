"""Parses the command line. Handlers are imported when they are called."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from warmcell.interfaces.cli.command_table import COMMANDS, EPILOGS, INSPECT, RUN, RUN_USAGE, SERVE, options_of
from warmcell.interfaces.cli.exits import UsageError
from warmcell.interfaces.cli.fast_parser import split_at_dashes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn


_MAIN_OPTIONS = ("-h", "--help", "--version")


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Sets the width itself: argparse would import half a dozen modules to find it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_terminal_width() - 2)


def _terminal_width() -> int:
    try:
        return int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        pass
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return 80


class Parser(argparse.ArgumentParser):
    """argparse with our error format: lower case, a hint, exit status 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message[:1].lower() + message[1:], f"see '{self.prog} --help'")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = _suggest(str(value), map(str, action.choices or ()), f"{self.prog} --help")
            raise UsageError(str(error), hint) from None


class MainParser(Parser):
    """The whole command line, with its commands grouped by role."""

    def format_help(self) -> str:
        lines = ["usage: warmcell COMMAND [OPTION]..."]
        for group in (RUN, SERVE, INSPECT):
            lines += [f"{group}:"]
            lines += [f"  {name:<11} {summary}" for name, (role, summary, _) in COMMANDS.items() if role == group]
        lines += ["'warmcell COMMAND --help' shows its options, 'warmcell --version' the version."]
        return "\n".join(lines) + "\n"


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the arguments. `handler` is the command's function."""
    if argv[:1] == ["help"]:  # `warmcell help run`
        argv = [*argv[1:2], "--help"]
    name = argv[0] if argv else ""
    if name in COMMANDS:
        own, for_program = split_at_dashes(argv) if name in ("run", "workspace") else (argv, [])
        own = ["--gpu=all" if word == "--gpu" else word for word in own]  # the word after it is not its value
        _check_options(name, own[1 : own.index("--") if "--" in own else None])
        parser = build_parser([name])
        found, rest = parser.parse_known_args(own, argparse.Namespace(args=for_program))
        if name == "image":  # argparse takes operands before options only
            found.operands += rest
        elif rest:
            words = f"unrecognized arguments: {' '.join(rest)}"
            if name == "run":
                raise UsageError(words, "arguments of the program come after '--'")
            parser.error(words)
        return found
    if name and not name.startswith("-"):
        raise UsageError(f"unknown command {name[:80]!r}", _suggest(name, COMMANDS, "warmcell --help"))
    if name.startswith("-") and name not in _MAIN_OPTIONS:
        raise UsageError(f"unknown option {name[:80]!r} of 'warmcell'", _suggest_main_option(name, argv[1:]))
    return build_parser().parse_args(argv)


def _suggest_main_option(option: str, rest: list[str]) -> str:
    command = next((word for word in rest if word in COMMANDS), None)
    if command is not None and any(option in names for names, _ in options_of(command)):
        return f"options come after the command: 'warmcell {command} {option}'"
    return _suggest(option, _MAIN_OPTIONS, "warmcell --help")


def _check_options(command: str, words: list[str]) -> None:
    """Refuse unknown options and suggest the nearest. argparse would first complain about missing arguments."""
    known = {"-h", "--help"} | {name for names, _ in options_of(command) for name in names if name.startswith("-")}
    for word in words:
        option = word.partition("=")[0] if word.startswith("--") else word[:2]
        is_option = word.startswith("-") and word != "-" and " " not in word and not word[1:2].isdigit()
        if is_option and option not in known:
            hint = _suggest(option, known, f"warmcell {command} --help")
            raise UsageError(f"unknown option {option[:80]!r} of 'warmcell {command}'", hint)


def _suggest(word: str, known: Iterable[str], help: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word.lower(), sorted(known), n=1)
    return f"did you mean {close[0]!r}? see '{help}'" if close else f"see '{help}'"


def build_parser(names: Iterable[str] = ()) -> Parser:
    """The parser for all commands, or for the named ones."""
    parser = MainParser(prog="warmcell", allow_abbrev=False, formatter_class=Formatter)
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for name in names or COMMANDS:
        _add_command(subparsers, name)
    return parser


def _add_command(subparsers: argparse._SubParsersAction[Parser], name: str) -> None:
    _, summary, handler = COMMANDS[name]
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=EPILOGS.get(name),
        usage=RUN_USAGE if name == "run" else None,
        allow_abbrev=False,
        formatter_class=Formatter,
    )
    for option_names, settings in options_of(name):
        parser.add_argument(*option_names, **settings)
    parser.set_defaults(handler=lambda arguments: _call(handler, arguments))


def _call(handler: str, arguments: argparse.Namespace) -> int:
    module, _, function = handler.partition(":")
    status: int = getattr(import_module(f"warmcell.interfaces.cli.{module}"), function)(arguments)
    return status


class _Version(argparse.Action):
    """Reads the version from the package's metadata, which is too slow to do on every start."""

    def __init__(self, option_strings: list[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"warmcell {version('warmcell')}")
        except PackageNotFoundError:
            print("warmcell (not installed; run from its sources)")
        parser.exit()
