"""The end of `warmcell shell` and `warmcell run` with `--changes`: lists what changed, and asks what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from warmcell.changes.patch import quote
from warmcell.core.light import on_error
from warmcell.core.lines import one_line
from warmcell.interfaces.cli.exits import NOT_ACCEPTED, OK, UsageError
from warmcell.interfaces.cli.messages import are_terminals, say_note, say_warning, write_bytes

if TYPE_CHECKING:
    from warmcell.changes.layer import ChangeLayer
    from warmcell.changes.model import Change
    from warmcell.workspace.root import Root

_LETTERS = {"added": "A", "modified": "M", "deleted": "D", "renamed": "R", "mode": "M"}
_GREEN, _RED, _YELLOW, _CYAN, _BOLD = 32, 31, 33, 36, 1
_COLORS = {"added": _GREEN, "deleted": _RED, "renamed": _CYAN}
_LINE_COLORS = {"+": _GREEN, "-": _RED, "@": _CYAN, "d": _BOLD}
#: An escaped character takes at most so many characters.
_LONGEST = 10
_QUESTION = "commit [a]ll, [p]ick, show [d]iff, [t]hrow away, [k]eep for later? "


def is_wanted(arguments: Any) -> bool:
    """Whether the guest's changes are kept apart. At most one of the options that answer may be given."""
    answers = [name for name in ("commit", "discard", "patch") if getattr(arguments, name)]
    if len(answers) > 1:
        raise UsageError(f"--{answers[0]} and --{answers[1]} cannot be combined", "leave one of the two out")
    return bool(arguments.changes or answers)


def review(layer: ChangeLayer, merged: Root, arguments: Any) -> int:
    """Do what the options say; else ask, or keep the changes if there is no terminal. Return 1 for conflicts.

    `merged` is the directory as guests see it.
    """
    with on_error(layer.keep):  # closing the layer would remove what could not be committed
        return _review(layer, merged, arguments)


def _review(layer: ChangeLayer, merged: Root, arguments: Any) -> int:
    changes = layer.changes()
    if not changes:
        return OK
    _list(changes)
    if arguments.commit:
        if _commit(layer, merged, None, ()):
            return OK
        _keep(layer)
        return NOT_ACCEPTED
    if arguments.discard:
        return OK
    if arguments.patch:
        _write_patch(layer, arguments.patch)
        return OK
    if not are_terminals(sys.stdin, sys.stderr):
        _keep(layer)
        return OK
    layer.keep_if_killed()  # a closed terminal ends this process without an answer
    try:
        _ask(layer, merged)
    except (EOFError, KeyboardInterrupt):
        _keep(layer)
    return OK


def _ask(layer: ChangeLayer, merged: Root) -> None:
    while changes := layer.changes():
        answer = _prompt(_QUESTION)
        if answer == "a":
            _commit(layer, merged, None, ())
        elif answer == "p":
            _pick(layer, merged, changes)
        elif answer == "d":
            _show_patch(layer)
            continue
        elif answer == "t":
            return
        elif answer == "k":
            _keep(layer)
            return
        else:
            continue
        if left := layer.changes():
            _list(left)


def _pick(layer: ChangeLayer, merged: Root, changes: Sequence[Change]) -> None:
    picked = []
    for change in changes:
        note = f" ({change.flag_reason})" if change.is_flagged else ""
        if _prompt(f"commit {_describe(change)}{note}? [y/n] ") == "y":
            picked.append(change.path)
    if picked:
        _commit(layer, merged, picked, picked)


def _commit(layer: ChangeLayer, merged: Root, paths: Sequence[str] | None, flagged: Sequence[str]) -> bool:
    report = layer.commit(paths, flagged, dry_run=False, merged=merged)
    say_note(f"committed {len(report.committed)}, merged {len(report.merged)}")
    for conflict in report.conflicts:
        say_warning(f"conflict: {quote(conflict.path)}: {conflict.reason}")
    for path in report.skipped:
        hint = "[p]ick it, at the end of 'warmcell shell DIR --changes'"
        say_warning(f"not committed: {quote(path)} is flagged", hint)
    return report.is_complete


def _keep(layer: ChangeLayer) -> None:
    layer.keep()
    directory = quote(layer.lower.path)
    say_note(f"the changes are kept; 'warmcell shell {directory} --changes' continues with them")


def _write_patch(layer: ChangeLayer, file: str) -> None:
    data = layer.patch()
    if file == "-":
        write_bytes(data, b"")
        return
    try:
        with open(file, "wb") as target:
            target.write(data)
    except OSError as error:
        _keep(layer)
        raise UsageError(f"--patch: cannot write {file!r}: {error.strerror}") from None


def _show_patch(layer: ChangeLayer) -> None:
    """Print the patch. Only a newline ends a line: another separator could forge the header of another file. No line
    is cut, since what it hides would be committed.
    """
    for raw in layer.patch().split(b"\n")[:-1]:
        line = raw.decode("utf-8", "backslashreplace")
        _write(_color(one_line(line, _LONGEST * len(line)), _LINE_COLORS.get(line[:1], 0)))


def _list(changes: Sequence[Change]) -> None:
    _write(_color(f"{len(changes)} change{'s' if len(changes) > 1 else ''}:", _BOLD))
    for change in changes:
        note = _color(f"  ! {change.flag_reason}", _YELLOW) if change.is_flagged else ""
        _write(f"  {_color(_describe(change), _COLORS.get(change.kind, _YELLOW))}{note}")


def _describe(change: Change) -> str:
    """One line, with names quoted as git does: no byte of a guest's choice reaches the terminal."""
    path = quote(change.path) + ("/" if change.entry == "directory" else "")
    old = f"{quote(change.old_path)} -> " if change.old_path else ""
    return f"{_LETTERS[change.kind]} {old}{path}"


def to_plain(change: Change) -> dict[str, Any]:
    """A change in the output of `run --json`."""
    return {name: getattr(change, name) for name in ("path", "kind", "old_path", "is_flagged", "flag_reason")}


def _prompt(question: str) -> str:
    sys.stderr.write(question)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.strip().lower()[:1]


def _write(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _color(text: str, color: int) -> str:
    has_color = color and are_terminals(sys.stderr) and not os.environ.get("NO_COLOR")
    return f"\x1b[{color}m{text}\x1b[0m" if has_color else text


Review = Callable[["ChangeLayer", "Root"], int]
