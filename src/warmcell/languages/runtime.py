"""LanguageRuntime: implemented by languages that need more than commands."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import ProgramSpec


@runtime_checkable
class LanguageRuntime(Protocol):
    """Turns source text into a `ProgramSpec`.

    `prepare` is called once per run, from any thread, before anything is started. It locates toolchains on the host
    (and may remember where they are) but never runs, compiles or parses the guest's text there. It raises
    `BackendUnavailable`, saying what to install, when the toolchain is missing; that is also how the registry learns
    which languages this host can run. A runtime may have `version(config)`, which says in one line what runs the code,
    `aliases`, `suffixes` and, if preparing takes long the first time, `check(config)`, which raises the same at once
    and returns where the toolchain was found.

    A third-party package registers a factory (a class, usually), or a `LanguageRow`, in its own metadata::

        [project.entry-points."warmcell.languages"]
        fortran = "my_package:FortranRuntime"
    """

    @property
    def name(self) -> str: ...

    def prepare(self, code: str, config: ProcessConfig) -> ProgramSpec: ...
