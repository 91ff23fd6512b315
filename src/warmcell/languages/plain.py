"""Languages that need only the commands in their row: find the program, build if needed, start."""

from __future__ import annotations

import os

from warmcell.core.errors import BackendUnavailable
from warmcell.core.records import replace
from warmcell.enforcers.host import find_program, query_tool, stamp
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import Build, ProgramSpec
from warmcell.languages.row import LanguageRow
from warmcell.languages.toolchain import beside_usr, visible_paths
from warmcell.policy.places import is_within

ARTEFACT = "main"


class PlainRuntime:
    """Runs what a row describes."""

    def __init__(self, row: LanguageRow) -> None:
        self._row = row

    @property
    def name(self) -> str:
        return self._row.name

    def prepare(self, code: str, config: ProcessConfig) -> ProgramSpec:
        row = self._row
        program = find_toolchain(row)
        build = self._build(code, program) if row.build else None
        shown = [*visible_paths(program), *existing(row.shows)]
        made = ProgramSpec(
            argv=_fill(row.start, program),
            files={row.main_file: code.encode()},
            main_file=row.main_file,
            runtime_paths=beside_usr(shown),
            build=build,
            env=row.env,
        )
        return replace(made, check=replace(made, argv=_fill(row.check, program))) if row.check else made

    def version(self, config: ProcessConfig) -> str:
        return query_tool(_fill(self._row.version, find_toolchain(self._row)))

    def _build(self, code: str, program: str) -> Build:
        """The cache key covers the source, the command and the identity of the compiler."""
        argv = _fill(self._row.build, program)
        return Build(argv, ARTEFACT, build_key(self.name, code, argv, stamp(os.path.realpath(program))))


def existing(patterns: tuple[str, ...]) -> list[str]:
    """The host paths that match."""
    from glob import glob

    return [path for pattern in patterns for path in sorted(glob(pattern))]


def find_toolchain(row: LanguageRow) -> str:
    """The first of the row's programs that the host has."""
    for name in row.programs:
        path = find_program(name)
        if path is not None:
            # Keep the name inside /usr: some programs depend on the name by which they were called.
            return path if is_within(path, "/usr") else os.path.realpath(path)
    wanted = " or ".join(row.programs)
    raise BackendUnavailable(f"{row.name} needs {wanted}, which is not on PATH", hint=row.remedy or None)


def build_key(*parts: object) -> str:
    """A hash of all parts. JSON keeps them separate."""
    import hashlib
    import json

    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _fill(words: tuple[str, ...], program: str) -> tuple[str, ...]:
    return tuple(word.replace("{program}", program) for word in words)
