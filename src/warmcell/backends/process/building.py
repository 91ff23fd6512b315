"""Launches that have to do with builds: the compiler's own, and that of the program which it made."""

from __future__ import annotations

import os

from warmcell.backends.process.job import MOST_SENT, Launch
from warmcell.core.records import replace
from warmcell.core.types import MIB
from warmcell.enforcers.pinned import pin
from warmcell.languages.program import CODE_DIR as CODE_WORD
from warmcell.languages.program import OUT_DIR as OUT_WORD
from warmcell.languages.program import Build
from warmcell.policy.places import OUT_DIR


def compiling(launch: Launch, build: Build, workshop: str) -> Launch:
    """The run of the compiler. The request's files go with it, because programs are made of them; they are part of
    the key.
    """
    compiler = replace(launch.program, argv=build.argv, build=None, worker=None, env={})
    out = pin(workshop, OUT_DIR, writable=True)
    return replace(bare(launch), program=compiler, extra_paths=(out,))


def bare(launch: Launch) -> Launch:
    """Nothing of who asks goes with a build: no variable, no input, no path."""
    return replace(launch, env={}, stdin=b"", args=(), fetch_files=(), is_build=True, listener=None)


def with_artefact(launch: Launch) -> Launch:
    """A small one is sent with the job, so that any cell that waits can take it; a mount needs a cell made for it."""
    directory, name = os.path.split(launch.artefact)
    program = launch.program
    if os.path.getsize(launch.artefact) > min(MOST_SENT, launch.limits.disk_mb * MIB // 4):
        return replace(launch, artefact="", extra_paths=(*launch.extra_paths, pin(directory, OUT_DIR)))
    with open(launch.artefact, "rb") as file:
        content = file.read()
    argv = tuple(word.replace(OUT_WORD, CODE_WORD) for word in program.argv)
    program = replace(program, argv=argv, files={name: content}, main_file=name)
    return replace(launch, artefact="", program=program)
