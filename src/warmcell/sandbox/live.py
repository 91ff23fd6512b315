"""The live side of a sandbox: one cage, made when it is first needed and again after it ended, and what runs in it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from warmcell.core.errors import InvalidRequest, SessionEnded
from warmcell.core.types import check_env, check_text, check_timeout
from warmcell.languages.shell import find_shell
from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.live_events import tell_of_cage, tell_of_process
from warmcell.sandbox.operations import Operations
from warmcell.sandbox.processes import AsyncProcess, ProcessInfo, PtySize
from warmcell.sessions.processes import LiveProcess, ProcessTable, Streams
from warmcell.sessions.rings import Ring
from warmcell.sessions.streams import Input, Output

if TYPE_CHECKING:
    from warmcell.backends.process.live import LiveCage

#: Of each stream of a process that somebody may look at later.
_RING_BYTES = 1 << 20
_ATTEMPTS = 3
RingFactory = Callable[[], Ring]
#: A command line, or what makes it out of the directory that its files are in.
Argv = Sequence[str] | Callable[[str], Sequence[str]]


def _ring() -> Ring:
    return Ring(_RING_BYTES)


class LiveSide:
    """Belongs to one sandbox, and to its event loop."""

    def __init__(self, open_cage: Callable[[], Awaitable[LiveCage]], operations: Operations, subject: str) -> None:
        """`subject`: whose it is, for events."""
        self._open_cage, self._subject = open_cage, subject
        self._operations = operations
        self._cage: LiveCage | None = None
        self._making = asyncio.Lock()
        self.table = ProcessTable()

    async def cage(self) -> LiveCage:
        """The one that lives, or a new one."""
        if (current := self.current()) is not None:
            return current
        async with self._making:
            if self._cage is None or not self._cage.is_alive:
                await self._end_cage()
                self._cage = await self._open_cage()
                loop = self._cage.loop
                self._cage.ended.add_done_callback(lambda _: loop.call(self.table.forget_pipes))
                tell_of_cage(self._subject, self._cage)
            return self._cage

    def current(self) -> LiveCage | None:
        """The one that lives, if there is one. From any thread."""
        cage = self._cage
        return cage if cage is not None and cage.is_alive else None

    @property
    def is_in_use(self) -> bool:
        """Whether anything runs in it: processes, or sessions."""
        cage = self.current()
        return cage is not None and cage.has_programs

    async def start(
        self,
        argv: Argv,
        cwd: str,
        *,
        command: str = "",
        env: Mapping[str, str] | None = None,
        pty: PtySize | None = None,
        stdin: bool = True,
        timeout: float | None = None,
        ring: RingFactory = _ring,
        files: Mapping[str, bytes] | None = None,
        is_heard: bool = False,
    ) -> AsyncProcess:
        """In a new cage where the old one ended in this very moment for want of anything to do."""
        for attempt in range(_ATTEMPTS):
            cage = await self.cage()
            try:
                process = await _begun(cage, argv, cwd, command, env, pty, stdin, ring, files)
                self.table.add(process)
                tell_of_process(self._subject, process)
                process.begin(timeout, is_heard=is_heard)
                return AsyncProcess(process, self._operations)
            except SessionEnded:
                if attempt == _ATTEMPTS - 1 or not cage.was_idle:
                    raise
        raise AssertionError("unreachable")

    def list(self) -> list[ProcessInfo]:
        return [AsyncProcess(process, self._operations).info for process in self.table.all()]

    def find(self, pid: int) -> AsyncProcess:
        process = self.table.find(pid)
        if process is None:
            raise InvalidRequest(f"there is no process {pid!r}", field="pid", hint="processes() lists them")
        return AsyncProcess(process, self._operations)

    async def aclose(self) -> None:
        async with self._making:
            await self._end_cage()

    async def _end_cage(self) -> None:
        cage, self._cage = self._cage, None
        if cage is not None:
            await in_thread(cage.close)


async def _begun(
    cage: LiveCage,
    argv: Argv,
    cwd: str,
    command: str,
    env: Mapping[str, str] | None,
    pty: PtySize | None,
    stdin: bool,
    ring: RingFactory,
    files: Mapping[str, bytes] | None,
) -> LiveProcess:
    """Pipes of the host's, whose other ends the guest gets: no open file is shared with it."""
    with Descriptors() as owned, Descriptors() as theirs:
        if pty is not None:
            streams, ends = _terminal_streams(cage, owned, theirs, ring)
        else:
            streams, ends = _plain_streams(cage, owned, theirs, ring, stdin)
        size = None if pty is None else (pty.cols, pty.rows)
        place = cage.new_code_dir() if callable(argv) else ""
        words = argv(place) if callable(argv) else argv
        program = await cage.start_soon(
            words, cwd=cwd, env=env, descriptors=ends, pty=size, files=files, code_dir=place
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
    cage: LiveCage, owned: Descriptors, theirs: Descriptors, ring: RingFactory, stdin: bool
) -> tuple[Streams, list[int]]:
    if stdin:
        written, read = _pipe(owned, theirs, inward=True)
    else:
        written, read = -1, theirs.opened(lambda: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    out, their_out = _pipe(owned, theirs, inward=False)
    error, their_error = _pipe(owned, theirs, inward=False)
    outputs = [Output(cage.loop, name, end, owned, ring()) for name, end in (("stdout", out), ("stderr", error))]
    return Streams(Input(cage.loop, written, owned), outputs, owned), [read, their_out, their_error]


def _terminal_streams(
    cage: LiveCage, owned: Descriptors, theirs: Descriptors, ring: RingFactory
) -> tuple[Streams, list[int]]:
    written, read = _pipe(owned, theirs, inward=True)
    shown, their_shown = _pipe(owned, theirs, inward=False)
    output = Output(cage.loop, "stdout", shown, owned, ring())
    return Streams(Input(cage.loop, written, owned), [output], owned), [read, their_shown]


def checked_command(command: object) -> tuple[list[str], str]:
    """Text is for the shell; a list is a program and its arguments. Also as one line, for people."""
    if isinstance(command, str):
        text = check_text("command", command)
        if not text.strip():
            raise InvalidRequest("is empty", field="command")
        return [find_shell(), "-c", text], text
    if not isinstance(command, Sequence) or isinstance(command, bytes) or not command:
        raise InvalidRequest(
            "must be text for the shell, or a list of a program and its arguments",
            field="command",
            hint='spawn("npm run dev"), or spawn(["python3", "-i"])',
        )
    argv = [check_text("command", word) for word in command]
    if not argv[0]:
        raise InvalidRequest("the program has no name", field="command")
    return argv, " ".join(argv)


def checked_options(env: object, pty: object, timeout: object) -> tuple[dict[str, str], PtySize | None, float | None]:
    if pty is not None and not isinstance(pty, PtySize):
        raise InvalidRequest(f"must be a PtySize, not {type(pty).__name__}", field="pty", hint="PtySize(80, 24)")
    seconds = None if timeout is None else check_timeout(timeout)
    return dict(check_env({} if env is None else env)), pty, seconds
