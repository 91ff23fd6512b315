"""Quoting for a POSIX shell. Pure module."""

from __future__ import annotations

from collections.abc import Sequence

from warmcell.workspace.mount_points import WORK


def command_line(argv: Sequence[str]) -> str:
    """A script that runs exactly this argv. Every word is quoted, so none is a keyword, an assignment or an option."""
    return " ".join(quote(word) for word in argv)


def in_directory(script: str, cwd: str, start_dir: str = WORK) -> str:
    """The script, started in a directory. `cd` is on the first line, so that line numbers in messages stay right."""
    return script if cwd == start_dir else f"cd {quote(cwd)} || exit 126; {script}"


def quote(word: str) -> str:
    """Always in quotes, unlike `shlex.quote`, which leaves "A=b" bare: that would be an assignment."""
    return "'" + word.replace("'", "'\"'\"'") + "'"
