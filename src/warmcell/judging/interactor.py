"""An interactor: a program that talks to the judged one over pipes and decides. Both run in cages of their own.

The interactor reads what the program prints and prints what the program reads. `input` and `expected` are files in its
work directory. It accepts with exit status 42 and rejects with 43, as in the ICPC problem format. Any other end, such
as an exception, is a failure of the interactor and says nothing about the program.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import select
import signal
import termios
from contextlib import closing, suppress
from typing import Any

from warmcell.core.contracts import SandboxBackend
from warmcell.core.errors import BackendBusy, ExecutionTimeout, InvalidRequest, SandboxError
from warmcell.core.output_events import Outcome
from warmcell.core.records import dataclass, replace
from warmcell.core.types import MAX_TIMEOUT, ExecRequest, ExecResult, Limits
from warmcell.judging.doubt import is_doubtful, run_alone
from warmcell.judging.verdicts import Case, CheckerFailed, Verdict, verdict_of
from warmcell.lifetime.descriptors import Descriptors, host_failure
from warmcell.lifetime.threads import cancel_and_wait

INPUT_FILE, EXPECTED_FILE = "input", "expected"
#: What the interactor may take longer than the program, to decide when the program has ended.
_EXTRA_SECONDS = 5.0
ACCEPTED, REJECTED = 42, 43
#: How often the two are started, if one of them has no place in time; and the share of its time that it may come late.
_MOST_STARTS, _LATE_SHARE = 3, 0.1
#: Bytes that wait for the other program before the writer has to wait too.
_MOST_UNREAD = 1 << 16


class PipeWriter:
    """A listener that writes a guest's stdout to a pipe, no faster than it is read."""

    def __init__(self, owned: Descriptors, descriptor: int) -> None:
        self._owned, self._descriptor = owned, descriptor
        self._unread = bytearray()
        os.set_blocking(descriptor, False)

    def deliver(self, stream: str, data: bytes) -> None:
        if stream == "stdout" and self._descriptor >= 0:
            self._unread += data
            self.catch_up()

    def wait_target(self) -> tuple[int, int] | None:
        return (self._descriptor, select.POLLOUT) if len(self._unread) > _MOST_UNREAD else None

    def catch_up(self) -> None:
        try:
            while self._unread:
                del self._unread[: os.write(self._descriptor, self._unread)]
        except BlockingIOError:
            pass
        except OSError:  # the reader has ended: the rest is lost, as in any pipe
            self._unread.clear()

    @property
    def is_unread(self) -> bool:
        """Whether the other program has not read all of it."""
        waiting = array.array("i", [0])
        if self._descriptor >= 0:
            with suppress(OSError):
                fcntl.ioctl(self._descriptor, termios.FIONREAD, waiting)
        return bool(self._unread) or waiting[0] > 0

    async def finish(self) -> None:
        """Writes what is left as fast as it is read, and closes the pipe."""
        while self._unread and self._descriptor >= 0:
            self.catch_up()
            await asyncio.sleep(0.005)
        self.close()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        self._owned.close_only(descriptor)


@dataclass(frozen=True, slots=True)
class Ends:
    """How a program and its interactor ended."""

    program: Outcome
    interactor: Outcome
    is_program_first: bool
    #: Whether the interactor was still running when the program ended, and had not read all that it had printed.
    is_unread: bool = False


class Interaction:
    """Runs of one interactor. `backend` must be able to read a guest's input from a descriptor."""

    def __init__(self, backend: SandboxBackend, interactor: ExecRequest) -> None:
        self._backend: Any = backend
        self._interactor = interactor

    async def prepare(self) -> None:
        """Compiles the interactor ahead, so that no case waits for that. One that does not compile is an error."""
        if getattr(self._backend, "build", None) is None:
            raise InvalidRequest("this backend cannot connect two programs", field="interactor", hint="ProcessBackend")
        try:
            await (await self._backend.build(self._interactor)).aclose()
        except SandboxError as error:
            if error.fault == "host":
                raise
            raise CheckerFailed(f"the interactor does not build: {error}") from error

    async def run(self, request: ExecRequest, case: Case) -> Verdict:
        """The verdict on one case. In doubt, both run again, alone."""
        found = await self._run_in_time(request, case)
        if not isinstance(found, Verdict) and is_doubtful(found.program, request, is_owed=found.is_unread):
            async with run_alone():
                found = await self._run_in_time(request, case)
        if isinstance(found, Verdict):
            return found
        return decide(found.program, found.interactor, found.is_program_first, request.limits)

    async def _run_in_time(self, request: ExecRequest, case: Case) -> Ends | Verdict:
        """As `_run_both`. If one had its place too late, both start again."""
        for _ in range(_MOST_STARTS):
            ends = await self._run_both(request, case)
            late = max(_lateness(ends.program, ends.interactor), _lateness(ends.interactor, ends.program))
            if not late:
                return ends
        return Verdict("host_error", ends.program.result, BackendBusy(late))

    async def _run_both(self, request: ExecRequest, case: Case) -> Ends:
        asked, own = replace(request, stdin=None), self._request(request, case)
        ended: list[tuple[ExecRequest, bool]] = []
        try:
            with Descriptors() as owned:  # a fork of the host program must not keep the writing ends open
                to_interactor, from_program = owned.pipe()
                to_program, from_interactor = owned.pipe()
        except OSError as error:
            failed = Outcome(0, error=host_failure(error, "connect the program and its interactor"))
            return Ends(failed, failed, is_program_first=False)
        with closing(owned):
            program = asyncio.ensure_future(self._run(asked, owned, to_program, from_program, ended))
            other = asyncio.ensure_future(self._run(own, owned, to_interactor, from_interactor, ended))
            try:
                outcomes = await asyncio.gather(program, other)
            finally:  # if one failed, the other must not go on while its pipes are closed
                await cancel_and_wait(program, other)
        first, is_unread = ended[0]
        is_program_first = first is asked  # an interactor that has ended reads nothing any more, whatever the host does
        return Ends(*outcomes, is_program_first=is_program_first, is_unread=is_program_first and is_unread)

    def _request(self, request: ExecRequest, case: Case) -> ExecRequest:
        own = self._interactor
        files = {**own.files, INPUT_FILE: case.stdin_bytes, EXPECTED_FILE: case.expected_bytes}
        timeout = min(request.timeout + max(own.timeout, _EXTRA_SECONDS), MAX_TIMEOUT)
        return replace(own, stdin=None, files=files, timeout=timeout)

    async def _run(
        self, request: ExecRequest, owned: Descriptors, stdin: int, stdout: int, ended: list[tuple[ExecRequest, bool]]
    ) -> Outcome:
        writer = PipeWriter(owned, stdout)
        try:
            return Outcome(0, await self._backend.execute(request, stdin=stdin, listener=writer))
        except SandboxError as error:
            return Outcome(0, error=error)
        finally:
            ended.append((request, writer.is_unread))  # before the other one can notice
            owned.close_only(stdin)  # so that the other one's writes fail, as in any pipe
            await writer.finish()


def _lateness(one: Outcome, other: Outcome) -> float:
    """How many seconds `other` came late, if `one` ran out of elapsed time and that may be why; else 0.

    Each waits for a place among all runs of the backend, and the clock of the first starts before the other has one.
    """
    error = one.error
    if not isinstance(error, ExecutionTimeout) or (error.clock, error.phase) != ("wall", "run"):
        return 0.0
    if isinstance(other.error, BackendBusy):
        return other.error.waited
    began, joined = error.result, other.result or getattr(other.error, "result", None)
    late = 0.0 if began is None or joined is None else joined.queued - began.queued
    return late if late > _LATE_SHARE * error.timeout else 0.0


def decide(program: Outcome, interactor: Outcome, is_program_first: bool, limits: Limits | None) -> Verdict:
    """The verdict from both outcomes. A limit that the program exceeded counts more than the interactor's decision."""
    found = verdict_of(program, limits)
    if isinstance(found, Verdict) and found.status not in ("runtime_error", "output_limit"):
        return found
    result = program.result
    said = interactor.result
    if said is None or said.exit_code not in (ACCEPTED, REJECTED):
        if is_program_first and isinstance(found, Verdict):
            return found  # its end may be why the interactor failed, and it must not escape its verdict by that
        return Verdict("checker_error", result, _interactor_failure(interactor))
    # A program that is rejected loses its reader, and may die of that.
    was_cut_off = isinstance(found, Verdict) and result is not None and _is_broken_pipe(result)
    if isinstance(found, Verdict) and not (was_cut_off and said.exit_code == REJECTED):
        return found
    return Verdict("accepted" if said.exit_code == ACCEPTED else "wrong_answer", result)


def _is_broken_pipe(result: ExecResult) -> bool:
    """By the signal, or as Python and others report the error."""
    return result.signal == signal.SIGPIPE or "BrokenPipe" in result.stderr or "EOF" in result.stderr


def _interactor_failure(outcome: Outcome) -> CheckerFailed:
    if outcome.error is not None:
        failed = CheckerFailed(f"the interactor failed: {outcome.error}")
        failed.__cause__ = outcome.error
        return failed
    assert outcome.result is not None
    return CheckerFailed(f"the interactor ended with status {outcome.result.exit_code}: {outcome.result.stderr[-500:]}")
