"""A program for a live cage: command line, files and environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from warmcell.backends.process.launch import Launch
from warmcell.core.records import dataclass
from warmcell.languages.program_spec import ProgramSpec


@dataclass(frozen=True, slots=True)
class LiveProgram:
    """`files` are by name, in the directory that the command line is made for."""

    program: ProgramSpec
    memory_mb: int
    files: Mapping[str, bytes]

    def argv_in(self, code_dir: str) -> list[str]:
        return self.program.argv_in(code_dir, code_dir, self.memory_mb)


def live_program(launch: Launch) -> LiveProgram:
    """The launch as a live program, with the artefact of its build among the files."""
    program, files = launch.program, dict(launch.program.files)
    if launch.artefact:
        with open(launch.artefact, "rb") as file:
            files[os.path.basename(launch.artefact)] = file.read()
    return LiveProgram(program, launch.limits.memory_mb, files)
