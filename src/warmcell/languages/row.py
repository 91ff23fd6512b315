"""LanguageRow: one language as data, and LanguageRuntime: what a language with ways of its own implements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from warmcell.core.records import dataclass, field
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program import Program


@dataclass(frozen=True, slots=True)
class LanguageRow:
    """All that is known of a language. In commands, `{program}` is what was found, `{code}` and `{out}` directories.

    A language that needs no more than commands has `programs` (names to look for on PATH, best first), `main_file`, a
    `start` and, when it is compiled, a `build` that leaves `{out}/main`; else a `check`, which reads a program without
    running it and fails where it is none. Any other names its `runtime`, as `module:class`. `shows` are host paths
    beside the program's own that the cage must show, where they exist.
    """

    name: str
    aliases: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    remedy: str = ""
    runtime: str = ""
    programs: tuple[str, ...] = ()
    main_file: str = ""
    build: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    shows: tuple[str, ...] = ()
    version: tuple[str, ...] = ("{program}", "--version")
    is_compiled: bool = False
    #: The built-in backend that runs it.
    backend: str = "process"


@runtime_checkable
class LanguageRuntime(Protocol):
    """Turns source text into a `Program`.

    `prepare` is called once per run, from any thread, before anything is started. It locates toolchains on the host
    (and may remember where they are) but never runs, compiles or parses the guest's text there. It raises
    `BackendUnavailable`, saying what to install, when the toolchain is missing; that is also how the registry learns
    which languages this host can run. A runtime may have `version(config)`, which says in one line what runs the code,
    `aliases`, `suffixes` and, if preparing takes long the first time, `check(config)`, which raises the same at once.

    A third-party package registers a factory (a class, usually), or a `LanguageRow`, in its own metadata::

        [project.entry-points."warmcell.languages"]
        fortran = "my_package:FortranRuntime"
    """

    @property
    def name(self) -> str: ...

    def prepare(self, code: str, config: ProcessConfig) -> Program: ...
