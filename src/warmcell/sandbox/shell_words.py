"""Programs and their arguments as a shell has them, and as people give them to us."""

from __future__ import annotations

from collections.abc import Sequence

from warmcell.core.errors import InvalidRequest
from warmcell.core.types import check_text
from warmcell.workspace.mount_points import WORK


def command_line(argv: Sequence[str]) -> str:
    """A script that runs exactly this argv. Every word is quoted, so none is a keyword, an assignment or an option."""
    return " ".join(quoted(word) for word in argv)


def in_directory(script: str, cwd: str, begins_in: str = WORK) -> str:
    """The script, started in a directory. On the first line, so that line numbers in messages stay true."""
    return script if cwd == begins_in else f"cd {quoted(cwd)} || exit 126; {script}"


def quoted(word: str) -> str:
    """A word for a POSIX shell, always in quotes: `shlex.quote` leaves "A=b" bare, which would be an assignment."""
    return "'" + word.replace("'", "'\"'\"'") + "'"


def checked_argv(command: object, args: object) -> list[str]:
    """A command line of plain text, or `InvalidRequest` that names the part."""
    name = check_text("command", command)
    if not name.strip():
        raise InvalidRequest("is empty", field="command")
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise InvalidRequest("must be a list of texts", field="args", hint='exec("ls", ["-l"]), or sh("ls -l")')
    return [name, *(check_text("args", item) for item in args)]
