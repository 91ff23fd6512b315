"""Launch: one requested run, decided but for the cell that it gets. LiveProgram: one for a live cage."""

from __future__ import annotations

import os
from collections.abc import Mapping

from warmcell.core.records import dataclass, field
from warmcell.core.types import MIB, EffectiveLimits
from warmcell.languages.program_spec import ProgramSpec
from warmcell.lifetime.run import Run
from warmcell.policy.resolve import ResolvedPath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from warmcell.runner.listening import Listener

#: The most bytes of a compiled program, or of files, that are sent with the job. A mount is quicker for more.
MAX_SENT_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True)
class LiveProgram:
    """`files` are by name, in the directory that the command line is made for."""

    program: ProgramSpec
    memory_mb: int
    files: Mapping[str, bytes]

    def argv_in(self, code_dir: str) -> list[str]:
        return self.program.argv_in(code_dir, code_dir, self.memory_mb)


@dataclass(frozen=True, slots=True)
class Launch:
    """`timeout` counts from the moment the guest can run; a build has already `spent` part of it.

    That is less than the build took (`built_for`) if its compiler waited for a processor.
    """

    program: ProgramSpec
    env: Mapping[str, str]
    #: Bytes, or a descriptor to pass on.
    stdin: bytes | int
    timeout: float
    limits: EffectiveLimits
    run: Run
    spent: float = 0.0
    built_for: float = 0.0
    args: tuple[str, ...] = ()
    #: The request's files, sent into the work directory with the job.
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch_files: tuple[str, ...] = ()
    #: More host paths for this run: a build's output directory, an artefact.
    extra_paths: tuple[ResolvedPath, ...] = ()
    #: Decides the policy: a compiler runs under `BUILD_POLICY`, whatever the program that it builds may do.
    phase: Literal["run", "build"] = "run"
    #: Receives the output as it arrives.
    listener: Listener | None = None
    ends_at_output_limit: bool = False
    #: The file that a build produced. The owner of the Launch keeps it in place.
    artefact: str = ""

    def as_live_program(self) -> LiveProgram:
        """With the artefact of its build among the files."""
        files = dict(self.program.files)
        if self.artefact:
            with open(self.artefact, "rb") as file:
                files[os.path.basename(self.artefact)] = file.read()
        return LiveProgram(self.program, self.limits.memory_mb, files)
