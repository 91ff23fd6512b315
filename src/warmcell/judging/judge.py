"""judge: one program, many cases. Built once, run in a fresh cage for each case, its output checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Literal

from warmcell.backends.built import Program
from warmcell.backends.many import Execute, attempt, run_many
from warmcell.backends.shared import shared_backend
from warmcell.core.contracts import SandboxBackend
from warmcell.core.errors import ExecutionTimeout, InvalidRequest, SandboxError
from warmcell.core.outcomes import Outcome
from warmcell.core.records import replace
from warmcell.core.types import DEFAULT_OUTPUT_BYTES, MAX_TIMEOUT, ExecRequest, ExecResult, Limits
from warmcell.judging.checkers import Checker, checker_for
from warmcell.judging.verdicts import Case, Verdict, failure, verdict_of

Clock = Literal["wall", "cpu"]
OnVerdict = Callable[[int, Verdict], object]

#: Where processor time is what counts, a program that only waits is ended after this many times its limit.
_WAITING_FACTOR = 5
_WAITING_SECONDS = 5.0
#: What a program that computes all the time gets of a processor that it has for itself.
_OWN_SHARE = 0.9


def judge(
    request: ExecRequest,
    cases: Sequence[Case],
    *,
    backend: SandboxBackend | None = None,
    checker: str | Checker = "trim",
    clock: Clock = "wall",
    concurrency: int | None = None,
    stop_early: bool = False,
    on_verdict: OnVerdict | None = None,
) -> list[Verdict]:
    """`ajudge` for code without an event loop."""
    from warmcell.lifetime.portal import portal

    options: dict[str, Any] = {"checker": checker, "clock": clock, "concurrency": concurrency}
    options |= {"stop_early": stop_early, "on_verdict": on_verdict, "backend": backend}
    return portal.call(ajudge, request, cases, **options)


async def ajudge(
    program: ExecRequest | Program,
    cases: Sequence[Case],
    *,
    backend: SandboxBackend | None = None,
    checker: str | Checker = "trim",
    clock: Clock = "wall",
    concurrency: int | None = None,
    stop_early: bool = False,
    on_verdict: OnVerdict | None = None,
) -> list[Verdict]:
    """A verdict for each case, in their order. `backend` is the one to build with (None: one that all share).

    `clock` says which time the limit is on: the time that passes, or the processor's. `concurrency` cases run at a time
    (None: as many as there are processors, so that they do not take time from each other). With `stop_early` the list
    ends with the first case that was not accepted. `on_verdict` is called with index and verdict as they come.
    """
    check = checker_for(checker)
    cases = [_checked_case(case) for case in cases]
    if clock not in ("wall", "cpu"):
        raise InvalidRequest(f"{clock!r} is none", field="clock", hint="'wall' or 'cpu'")
    async with AsyncExitStack() as cleanup:
        execute, request = _unbuilt(backend), program if isinstance(program, ExecRequest) else program.request
        if isinstance(program, ExecRequest):
            request = _with_room(program, cases)
            built = await _build(backend or shared_backend(), request)
            if isinstance(built, Verdict):
                return [built] * len(cases)
            if built is not None:
                program = await cleanup.enter_async_context(built)
        if isinstance(program, Program):
            execute = _runs_of(program)
        session = _Session(execute, request, cases, check, clock, on_verdict)
        return await session.run(concurrency or _processors(), stop_early)


class _Session:
    """One call of `ajudge`, after the build."""

    def __init__(
        self,
        execute: Execute,
        request: ExecRequest,
        cases: Sequence[Case],
        check: Checker,
        clock: Clock,
        on_verdict: OnVerdict | None,
    ) -> None:
        self._execute = execute
        self._cases = cases
        self._check = check
        self._requests = [_request_for(request, case, clock) for case in cases]
        self._on_verdict = on_verdict
        self._verdicts: dict[int, Verdict] = {}

    async def run(self, concurrency: int, stop_early: bool) -> list[Verdict]:
        doubtful: list[int] = []
        async with aclosing(run_many(self._execute, self._requests, concurrency)) as outcomes:  # type: ignore[type-var]
            async for outcome in outcomes:
                if _is_doubtful(outcome):
                    doubtful.append(outcome.index)
                else:
                    self._settle(outcome)
                if stop_early and self._is_decided():
                    break
        for index in sorted(doubtful):
            if stop_early and self._is_decided():
                break
            # Alone this time: was it the program that was slow, or did it only have to share the processors?
            self._settle(await attempt(self._execute, index, self._requests[index]))
        return self._prefix() if stop_early else [self._verdicts[index] for index in range(len(self._cases))]

    def _settle(self, outcome: Outcome) -> None:
        found = verdict_of(outcome)
        case = self._cases[outcome.index]
        if isinstance(found, ExecResult):
            found = Verdict("accepted" if self._check(case, found) else "wrong_answer", found)
        self._verdicts[outcome.index] = found
        if self._on_verdict is not None:
            self._on_verdict(outcome.index, found)

    def _prefix(self) -> list[Verdict]:
        """The verdicts from the first one on, as far as there are any without a gap, to the first that is no pass."""
        found: list[Verdict] = []
        while len(found) in self._verdicts and (not found or found[-1].ok):
            found.append(self._verdicts[len(found)])
        return found

    def _is_decided(self) -> bool:
        """Whether more verdicts could not change the prefix."""
        prefix = self._prefix()
        return bool(prefix) and not prefix[-1].ok


def _is_doubtful(outcome: Outcome) -> bool:
    """Out of time by the clock on the wall, without having computed for as long: it slept, or others ran instead."""
    error = outcome.error
    if not isinstance(error, ExecutionTimeout) or error.clock != "wall" or error.phase != "run":
        return False
    return error.result is None or error.result.usage.cpu_time < _OWN_SHARE * error.timeout


def _request_for(request: ExecRequest, case: Case, clock: Clock) -> ExecRequest:
    limit = case.timeout or request.timeout
    request = replace(request, stdin=case.stdin, timeout=limit)
    if clock == "wall":
        return request
    limits = replace(request.limits or Limits(), cpu_seconds=limit)
    waiting = min(limit * _WAITING_FACTOR + _WAITING_SECONDS, MAX_TIMEOUT)
    return replace(request, limits=limits, timeout=waiting)


def _with_room(request: ExecRequest, cases: Sequence[Case]) -> ExecRequest:
    """With a cap on output that the right answer does not meet, unless the request has one of its own."""
    if request.limits is not None and request.limits.output_bytes is not None:
        return request
    longest = max((len(case.expected_bytes) for case in cases), default=0)
    most = min(max(DEFAULT_OUTPUT_BYTES, 2 * longest), 1 << 30)
    return replace(request, limits=replace(request.limits or Limits(), output_bytes=most))


async def _build(backend: SandboxBackend, request: ExecRequest) -> Program | Verdict | None:
    """The program, or why there is none; None for a backend that does not build."""
    build = getattr(backend, "build", None)
    if build is None:
        return None
    try:
        try:
            return await build(request)  # type: ignore[no-any-return]
        except SandboxError as error:
            if error.fault != "host" or not error.retryable:
                raise
        return await build(request)  # type: ignore[no-any-return]
    except SandboxError as error:
        verdict = failure(error)
        return verdict if verdict.status == "host_error" else replace(verdict, status="build_error")


def _unbuilt(backend: SandboxBackend | None) -> Execute:
    async def execute(request: ExecRequest) -> ExecResult:
        return await (backend or shared_backend()).execute(request)

    return execute


def _runs_of(program: Program) -> Execute:
    async def execute(request: ExecRequest) -> ExecResult:
        return await program.run(request.stdin, request.args, request.timeout, limits=request.limits)

    return execute


def _checked_case(case: object) -> Case:
    if not isinstance(case, Case):
        raise InvalidRequest(f"must be Case, not {type(case).__name__}", field="cases")
    return case


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
