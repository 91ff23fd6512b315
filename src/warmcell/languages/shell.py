"""Shell commands: bash if the host has it, else sh; a plain command with an absolute path needs no shell."""

from __future__ import annotations

import os
import re

from warmcell.core.errors import BackendUnavailable
from warmcell.enforcers.host import find_program, is_program, query_tool
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import CODE_DIR, ProgramSpec
from warmcell.languages.table import REMEDIES
from warmcell.policy.places import is_within

MAIN_FILE = "main.sh"
#: Tried after the host's own PATH.
_USUAL_PLACES = "/usr/bin:/bin:/usr/local/bin"
#: Words that mean the same to a shell and to exec: nothing to expand, quote, assign or redirect.
_PLAIN_COMMAND = re.compile(r"/[\w./+@%,:-]+(?: +[\w./+@%,:=-]+)*", re.ASCII)


class ShellRuntime:
    """Runs the text as a script file, so that it may be long and keeps stdin for its commands."""

    name = "command"

    def version(self, config: ProcessConfig) -> str:
        shell = find_shell()
        return query_tool([shell, "--version"]) if os.path.basename(shell) == "bash" else "sh"

    def prepare(self, code: str, config: ProcessConfig) -> ProgramSpec:
        script = (find_shell(), f"{CODE_DIR}/{MAIN_FILE}")
        argv = plain_command(code) or script
        files = {MAIN_FILE: code.encode()}
        check = ProgramSpec((script[0], "-n", *script[1:]), files, MAIN_FILE)
        # A script ignores its arguments; a plain command would use them.
        return ProgramSpec(argv, files, MAIN_FILE, argv_for_args=script, check=check)


def plain_command(code: str) -> tuple[str, ...] | None:
    """The words of a command such as `/usr/bin/env`, if a shell would add nothing but its own variables.

    Only for programs below /usr, which every cage shows; otherwise the shell prints its own "not found".
    """
    text = code.strip(" \t\n")
    if not _PLAIN_COMMAND.fullmatch(text):
        return None
    words = tuple(text.split())
    program = os.path.realpath(words[0])
    return words if is_program(program) and is_within(program, "/usr") else None


def find_shell() -> str:
    """bash or sh, by its path through /usr if the host merged the two."""
    for name in ("bash", "sh"):
        path = find_program(name) or find_program(name, _USUAL_PLACES)
        if path:
            directory, file = os.path.split(path)
            return os.path.join(os.path.realpath(directory), file)
    raise BackendUnavailable("neither bash nor sh was found on this host", hint=REMEDIES["command"])
