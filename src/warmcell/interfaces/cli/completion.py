"""`warmcell completion bash|zsh|fish`: generates completion scripts from the parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from warmcell.core.records import dataclass
from warmcell.interfaces.cli.exits import OK
from warmcell.interfaces.cli.parser import build_parser
from warmcell.interfaces.cli.render import print_json
from warmcell.languages.config import ProcessConfig
from warmcell.languages.registry import all_rows, why_missing
from warmcell.languages.row import LanguageRow
from warmcell.languages.table import ROWS


@dataclass(frozen=True, slots=True)
class Option:
    names: tuple[str, ...]
    help: str
    values: tuple[str, ...]
    takes_value: bool


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...]


def completion(arguments: argparse.Namespace) -> int:
    script = SHELLS[arguments.shell](commands())
    print_json({"shell": arguments.shell, "script": script}) if arguments.json else print(script, end="")
    return OK


def commands(*, for_any_host: bool = False) -> list[Command]:
    """The parser's commands and options as data, with the languages and backends of this host, or with all."""
    parsers = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    summaries = {action.dest: action.help or "" for action in parsers._choices_actions}
    rows, backends = (ROWS, ("process", "wasm")) if for_any_host else _find_on_host()
    languages = [word for row in rows for word in (row.name, *row.aliases)]
    return [
        _command(name, summaries[name], parser, languages if name == "run" else [], backends)
        for name, parser in parsers.choices.items()
    ]


def _command(
    name: str, summary: str, parser: argparse.ArgumentParser, languages: list[str], backends: tuple[str, ...]
) -> Command:
    options, words = [], list(languages)
    for action in parser._actions:
        choices = backends if "--backend" in action.option_strings else tuple(map(str, action.choices or ()))
        if action.option_strings:
            takes_value = action.nargs != 0
            options.append(Option(tuple(action.option_strings), action.help or "", choices, takes_value))
        else:
            words += choices
    return Command(name, summary, tuple(options), tuple(words))


def _find_on_host() -> tuple[Iterable[LanguageRow], tuple[str, ...]]:
    """The languages that this host can run, and WebAssembly; and the backends."""
    from warmcell.backends.registry import backend_names

    config = ProcessConfig()
    rows = [row for row in all_rows() if row.backend != "process" or why_missing(row.name, config) is None]
    return rows, backend_names()


def bash(known: list[Command]) -> str:
    cases = "\n".join(
        f"    {command.name}) words='{' '.join([*(n for o in command.options for n in o.names), *command.words])}' ;;"
        for command in known
    )
    names = " ".join(command.name for command in known)
    return f"""# source this file, or: eval "$(warmcell completion bash)"
_warmcell() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{names} --version --help' -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
    *) words='' ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  case $current in -*) ;; *) COMPREPLY+=($(compgen -f -- "$current")) ;; esac
}}
complete -o filenames -F _warmcell warmcell
"""


def zsh(known: list[Command]) -> str:
    names = "\n".join(f"    {_quote(f'{command.name}:{command.help}')}" for command in known)
    cases = "\n".join(
        f"    {command.name}) _arguments {' '.join(_zsh_option(option) for option in command.options)} "
        f'\'*:argument:_alternative "words\\:word\\:({" ".join(command.words)})" "files\\:file\\:_files"\' ;;'
        for command in known
    )
    return f"""#compdef warmcell
_warmcell() {{
  local -a names=(
{names}
  )
  if (( CURRENT == 2 )); then
    _describe command names
    return
  fi
  local command=${{words[2]}}
  shift words
  (( CURRENT-- ))
  case $command in
{cases}
  esac
}}
compdef _warmcell warmcell
"""


def _zsh_option(option: Option) -> str:
    value = f":value:({' '.join(option.values)})" if option.values else ":value:_files" if option.takes_value else ""
    text = option.help.replace("[", "(").replace("]", ")").replace(":", " ")
    return " ".join(_quote(f"*{name}[{text}]{value}") for name in option.names)


def fish(known: list[Command]) -> str:
    lines = [
        f"complete -c warmcell -n __fish_use_subcommand -f -a {command.name} -d {_quote(command.help)}"
        for command in known
    ]
    for command in known:
        condition = f"complete -c warmcell -n '__fish_seen_subcommand_from {command.name}'"
        lines += [f"{condition} {_fish_option(option)}" for option in command.options]
        if command.words:
            lines.append(f"{condition} -a '{' '.join(command.words)}'")
    return "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    flags = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
    values = f" -x -a '{' '.join(option.values)}'" if option.values else " -r" if option.takes_value else ""
    return f"{flags}{values} -d {_quote(option.help)}"


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
