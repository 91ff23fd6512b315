"""Shell commands: bash where the host has it, else sh; a plain command by absolute path needs no shell at all."""

from __future__ import annotations

import os
import re

from warmcell.core.errors import BackendUnavailable
from warmcell.enforcers.host import ask, find_program, is_program
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program import CODE_DIR, Program
from warmcell.languages.table import REMEDIES
from warmcell.policy.places import is_within

MAIN_FILE = "main.sh"
#: What the host's own PATH may lack, tried after it.
_USUAL_PLACES = "/usr/bin:/bin:/usr/local/bin"
#: Words that mean the same to every shell and to exec: nothing to expand, quote, assign or redirect.
_PLAIN_COMMAND = re.compile(r"/[\w./+@%,:-]+(?: +[\w./+@%,:=-]+)*", re.ASCII)


class ShellRuntime:
    """Runs the text as a script file, so that it may be long and has stdin to itself."""

    name = "command"

    def version(self, config: ProcessConfig) -> str:
        shell = find_shell()
        return ask([shell, "--version"]) if os.path.basename(shell) == "bash" else "sh"

    def prepare(self, code: str, config: ProcessConfig) -> Program:
        script = (find_shell(), f"{CODE_DIR}/{MAIN_FILE}")
        argv = plain_command(code) or script
        files = {MAIN_FILE: code.encode()}
        check = Program((script[0], "-n", *script[1:]), files, MAIN_FILE)
        # A script that is one plain command does nothing with its arguments; the command by itself would.
        return Program(argv, files, MAIN_FILE, argv_for_args=script, check=check)


def plain_command(code: str) -> tuple[str, ...] | None:
    """The words of a command such as `/usr/bin/env`, when a shell would add nothing to it but its own variables.

    Only for programs below /usr, which every cage shows; for anything else the shell says "not found" in its own way.
    """
    text = code.strip(" \t\n")
    if not _PLAIN_COMMAND.fullmatch(text):
        return None
    words = tuple(text.split())
    program = os.path.realpath(words[0])
    return words if is_program(program) and is_within(program, "/usr") else None


def find_shell() -> str:
    """bash or sh, as it is reached through /usr where the host merged the two."""
    for name in ("bash", "sh"):
        path = find_program(name) or find_program(name, _USUAL_PLACES)
        if path:
            directory, file = os.path.split(path)
            return os.path.join(os.path.realpath(directory), file)
    raise BackendUnavailable("there is no bash or sh on this host", hint=REMEDIES["command"])
