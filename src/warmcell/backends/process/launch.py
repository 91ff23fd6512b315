"""Launch: one run as it was asked for, after its language has made a program of it. Plain data."""

from __future__ import annotations

from collections.abc import Mapping

from warmcell.core.records import dataclass
from warmcell.core.types import EffectiveLimits
from warmcell.languages.program import Program
from warmcell.lifetime.run import Run
from warmcell.policy.resolve import ResolvedPath


@dataclass(frozen=True, slots=True)
class Launch:
    """`timeout` counts from the moment that the guest can run; a build has already `spent` some of it."""

    program: Program
    env: Mapping[str, str]
    #: Bytes, or a descriptor to pass on.
    stdin: bytes | int
    timeout: float
    limits: EffectiveLimits
    run: Run
    spent: float = 0.0
    #: More of the host for this run: a build's output directory, an artefact.
    extra_paths: tuple[ResolvedPath, ...] = ()
    #: Compilers need processes of their own, whatever the program may do.
    is_build: bool = False
