"""Languages that need no more than the commands in their row: find the program, build if told to, start."""

from __future__ import annotations

import os

from warmcell.core.errors import BackendUnavailable
from warmcell.core.records import replace
from warmcell.enforcers.host import ask, find_program, stamp
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program import Build, Program
from warmcell.languages.row import LanguageRow
from warmcell.languages.toolchain import beside_usr, shown_for
from warmcell.policy.places import is_within

ARTEFACT = "main"


class PlainRuntime:
    """Runs what a row describes."""

    def __init__(self, row: LanguageRow) -> None:
        self._row = row

    @property
    def name(self) -> str:
        return self._row.name

    def prepare(self, code: str, config: ProcessConfig) -> Program:
        row = self._row
        program = found_program(row)
        build = self._build(code, program) if row.build else None
        shown = [*shown_for(program), *existing(row.shows)]
        made = Program(
            argv=_filled(row.start, program),
            files={row.main_file: code.encode()},
            main_file=row.main_file,
            runtime_paths=beside_usr(shown),
            build=build,
            env=row.env,
        )
        return replace(made, check=replace(made, argv=_filled(row.check, program))) if row.check else made

    def version(self, config: ProcessConfig) -> str:
        return ask(_filled(self._row.version, found_program(self._row)))

    def _build(self, code: str, program: str) -> Build:
        """Kept by all that the result depends on: the text, the command, and the very compiler that was found."""
        argv = _filled(self._row.build, program)
        return Build(argv, ARTEFACT, build_key(self.name, code, argv, stamp(os.path.realpath(program))))


def existing(patterns: tuple[str, ...]) -> list[str]:
    """The host's paths that match."""
    from glob import glob

    return [path for pattern in patterns for path in sorted(glob(pattern))]


def found_program(row: LanguageRow) -> str:
    """The first of the row's programs that the host has."""
    for name in row.programs:
        path = find_program(name)
        if path is not None:
            # Inside /usr the name by which it was found is kept: some programs ask by which name they were called.
            return path if is_within(path, "/usr") else os.path.realpath(path)
    wanted = " or ".join(row.programs)
    raise BackendUnavailable(f"{row.name} needs {wanted}, which is not on PATH", hint=row.remedy or None)


def build_key(*parts: object) -> str:
    """A name for what a build makes of its parts. JSON keeps them from running together."""
    import hashlib
    import json

    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _filled(words: tuple[str, ...], program: str) -> tuple[str, ...]:
    return tuple(word.replace("{program}", program) for word in words)
