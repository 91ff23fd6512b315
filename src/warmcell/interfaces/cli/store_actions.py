"""`warmcell image` and `warmcell workspace`: a table of actions on a store, and how their results are printed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from warmcell.core.errors import SandboxError
from warmcell.interfaces.cli.exits import OK, UsageError
from warmcell.interfaces.cli.messages import say_note, size_text
from warmcell.interfaces.cli.render import finish, print_json

Store = TypeVar("Store")
#: The maximum of an action that takes any number of operands.
MANY = 1000


class Action(NamedTuple, Generic[Store]):
    """One action. Its function may return an exit status."""

    run: Callable[[Store, argparse.Namespace], int | None]
    #: The operands in the usage line.
    operands: str = ""
    fewest: int = 0
    most: int = 0
    #: Whether it prints the output of programs itself, as it arrives.
    prints_output: bool = False


def run_action(
    command: str,
    actions: Mapping[str, Action[Store]],
    open_store: Callable[[argparse.Namespace], Store],
    arguments: argparse.Namespace,
) -> int:
    """Carry out the action that the command line names."""
    action = actions[arguments.action]
    if not action.fewest <= len(arguments.operands) <= action.most:
        raise UsageError(f"usage: warmcell {command} {arguments.action} {action.operands}".rstrip())
    try:
        return action.run(open_store(arguments), arguments) or OK
    except SandboxError as error:
        return finish(error, arguments.json, is_printed=action.prints_output)


def print_success(fields: dict[str, Any], text: str, as_json: bool) -> None:
    """Print the fields as JSON, or the text for people, which may be empty."""
    if as_json:
        print_json({"status": "success"} | fields)
    elif text:
        print(text)


def print_freed(freed: int, as_json: bool) -> None:
    if as_json:
        print_json({"status": "success", "freed_bytes": freed})
    else:
        say_note(f"{size_text(freed)} freed")


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print("\n".join(table_lines(head, *rows)))


def table_lines(*rows: Sequence[str], numbers: Container[int] = ()) -> list[str]:
    """The rows in aligned columns; those whose index is in `numbers` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{{:{'>' if index in numbers else '<'}{width}}}" for index, width in enumerate(widths)]
    return ["  ".join(forms).format(*row).rstrip() for row in rows]
