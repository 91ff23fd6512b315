"""A program of any language as a live cage takes it: a command line, the files that it needs, and its variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

from warmcell.backends.process.job import Launch
from warmcell.core.records import dataclass
from warmcell.languages.program import Program


@dataclass(frozen=True, slots=True)
class LiveProgram:
    """`files` are by name, in the directory that the command line is made for."""

    program: Program
    memory_mb: int
    files: Mapping[str, bytes]

    def argv_in(self, code_dir: str) -> list[str]:
        return self.program.argv_in(code_dir, code_dir, self.memory_mb)


def live_program(launch: Launch) -> LiveProgram:
    """With what a build made, if there was one, among its files."""
    program, files = launch.program, dict(launch.program.files)
    if launch.artefact:
        with open(launch.artefact, "rb") as file:
            files[os.path.basename(launch.artefact)] = file.read()
    return LiveProgram(program, launch.limits.memory_mb, files)
