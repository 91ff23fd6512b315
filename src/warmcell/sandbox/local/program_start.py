"""Starting one program in a live cage, with pipes or a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from warmcell.lifetime.descriptors import Descriptors
from warmcell.sandbox.interface import PtySize
from warmcell.sessions.processes import LiveProcess, Streams
from warmcell.sessions.streams import Input, Output, Ring

if TYPE_CHECKING:
    from warmcell.backends.process.live import LiveCage

#: Kept of each stream of a process, for callers that look later.
_RING_BYTES = 1 << 20
RingFactory = Callable[[], Ring]
#: A command line, or a function that makes one from the directory of its files.
Argv = Sequence[str] | Callable[[str], Sequence[str]]


def make_ring() -> Ring:
    return Ring(_RING_BYTES)


async def start_program(
    cage: LiveCage,
    argv: Argv,
    cwd: str,
    command: str,
    env: Mapping[str, str] | None,
    pty: PtySize | None,
    stdin: bool,
    ring: RingFactory,
    files: Mapping[str, bytes] | None,
    worker: str | None = None,
    joins_output: bool = False,
) -> LiveProcess:
    """The host creates the pipes and gives the guest their other ends: no open file description is shared.

    `worker` names a worker of ours to start in place of the command line. With `joins_output` stderr is stdout's pipe:
    only then is the order of what was written to the two certain.
    """
    with Descriptors() as owned, Descriptors() as theirs:
        if pty is not None:
            streams, ends = _terminal_streams(cage, owned, theirs, ring)
        else:
            streams, ends = _plain_streams(cage, owned, theirs, ring, stdin, joins_output)
        size = None if pty is None else (pty.cols, pty.rows)
        place = cage.new_code_dir() if callable(argv) else ""
        words = argv(place) if callable(argv) else argv
        program = await cage.start_async(
            words, cwd=cwd, env=env, descriptors=ends, pty=size, files=files, code_dir=place, worker=worker
        )
        theirs.close()
    return LiveProcess(cage.loop, program, command or " ".join(words), cwd, streams)


def _pipe(owned: Descriptors, theirs: Descriptors, *, inward: bool) -> tuple[int, int]:
    """Our end, which never blocks, and theirs."""
    reader, writer = owned.pipe()
    ours, other = (writer, reader) if inward else (reader, writer)
    theirs.take([owned.give(other)])
    os.set_blocking(ours, False)
    return ours, other


def _plain_streams(
    cage: LiveCage, owned: Descriptors, theirs: Descriptors, ring: RingFactory, stdin: bool, joins_output: bool
) -> tuple[Streams, list[int]]:
    if stdin:
        ours_in, their_in = _pipe(owned, theirs, inward=True)
    else:
        ours_in, their_in = -1, theirs.open(lambda: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    out, their_out = _pipe(owned, theirs, inward=False)
    outputs, their_error = [Output(cage.loop, "stdout", out, owned, ring())], their_out
    if not joins_output:
        error, their_error = _pipe(owned, theirs, inward=False)
        outputs.append(Output(cage.loop, "stderr", error, owned, ring()))
    return Streams(Input(cage.loop, ours_in, owned), outputs, owned), [their_in, their_out, their_error]


def _terminal_streams(
    cage: LiveCage, owned: Descriptors, theirs: Descriptors, ring: RingFactory
) -> tuple[Streams, list[int]]:
    ours_in, their_in = _pipe(owned, theirs, inward=True)
    out, their_out = _pipe(owned, theirs, inward=False)
    output = Output(cage.loop, "stdout", out, owned, ring())
    return Streams(Input(cage.loop, ours_in, owned), [output], owned), [their_in, their_out]
