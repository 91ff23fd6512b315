"""judge: one program, many cases. Built once, run in a fresh cage for each case, its output checked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import cache, partial
from typing import Any, Literal

from warmcell.backends.built import Program
from warmcell.backends.many import Execute, attempt, check_concurrency, count_processors, run_many
from warmcell.backends.shared import shared_backend
from warmcell.backends.supervisors import Supervisors, supervisors_for
from warmcell.core.contracts import SandboxBackend
from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.output_events import Outcome
from warmcell.core.records import replace
from warmcell.core.request_checks import check_kind
from warmcell.core.types import DEFAULT_OUTPUT_BYTES, MAX_TIMEOUT, ExecRequest, ExecResult, Limits
from warmcell.judging.checkers import Checker, checker_for
from warmcell.judging.doubt import is_doubtful, run_alone
from warmcell.judging.verdicts import Case, CheckerFailed, Verdict, failure_verdict, verdict_of

Clock = Literal["wall", "cpu"]
OnVerdict = Callable[[int, Verdict], object]

#: If the limit is on processor time, a program that only sleeps is ended after so many times its limit, and seconds.
_SLEEPING_FACTOR = 3
_SLEEPING_SECONDS = 2.0


def judge(
    request: ExecRequest,
    cases: Sequence[Case],
    *,
    backend: SandboxBackend | None = None,
    checker: str | Checker = "trim",
    clock: Clock = "cpu",
    concurrency: int | None = None,
    processes: int | None = None,
    stop_early: bool = False,
    on_verdict: OnVerdict | None = None,
    interactor: ExecRequest | None = None,
) -> list[Verdict]:
    """`ajudge` for code without an event loop."""
    from warmcell.lifetime.portal import portal

    options: dict[str, Any] = {"checker": checker, "clock": clock, "concurrency": concurrency}
    options |= {"stop_early": stop_early, "on_verdict": on_verdict, "backend": backend}
    options |= {"interactor": interactor, "processes": processes}
    return portal.call(ajudge, request, cases, **options)


async def ajudge(
    program: ExecRequest | Program,
    cases: Sequence[Case],
    *,
    backend: SandboxBackend | None = None,
    checker: str | Checker = "trim",
    clock: Clock = "cpu",
    concurrency: int | None = None,
    processes: int | Supervisors | None = None,
    stop_early: bool = False,
    on_verdict: OnVerdict | None = None,
    interactor: ExecRequest | None = None,
    max_elapsed: float = MAX_TIMEOUT,
) -> list[Verdict]:
    """A verdict for each case, in order. `backend` builds the program (None: one that all share).

    `clock` says which time is limited: processor time, with a limit on elapsed time behind it, or elapsed time.
    `concurrency` cases run at a time (None: one for each processor, or two where several processes start them and
    processor time is limited), started by `processes` Python processes (None: from the processors and the number of
    cases), or by supervisors that the caller has started. With `stop_early` the
    list ends with the first case that was not accepted. `on_verdict` is called with index and verdict as they come. An
    `interactor` talks to the program in place of a checker: see `judging.interactor`. No run takes longer than
    `max_elapsed` seconds, whatever the clock.
    """
    if not hasattr(program, "request"):
        check_kind("request", program, ExecRequest, "ExecRequest(language, code, timeout)")
    check = checker_for(checker)
    cases = [check_kind("cases", case, Case) for case in cases]
    if clock not in ("wall", "cpu"):
        raise InvalidRequest(f"unknown clock {clock!r}", field="clock", hint="'wall' or 'cpu'")
    check_concurrency(concurrency)
    limit = partial(_request_maker, clock=clock, max_elapsed=max_elapsed)
    async with AsyncExitStack() as cleanup:
        if interactor is not None:
            return await _judge_interactively(
                program, interactor, cases, backend or shared_backend(), limit, concurrency, stop_early, on_verdict
            )
        execute, request = _unbuilt(backend), program if isinstance(program, ExecRequest) else program.request
        supervisors = None
        if isinstance(program, ExecRequest) and isinstance(processes, Supervisors):
            request = _normalise(program, cases)
            execute = processes.runner_of(request)  # which builds it
        elif isinstance(program, ExecRequest):
            request = _normalise(program, cases)
            built = await _build(backend or shared_backend(), request)
            if isinstance(built, Verdict):
                return _repeat(built, cases, stop_early, on_verdict)
            supervisors = supervisors_for(backend or shared_backend(), processes, cases)
            if supervisors is not None:
                execute = (await cleanup.enter_async_context(supervisors)).execute
            if built is not None:
                program = await cleanup.enter_async_context(built)
        at_once = concurrency
        if isinstance(program, Program) and supervisors is not None:
            execute = supervisors.runner_of(request, _runs_of(program.run))
        elif isinstance(program, Program):
            # On a cluster, cases wait on the nodes. Not with `stop_early`, which would throw most of them away.
            cluster: Any = program if hasattr(program, "run_case") and not concurrency and not stop_early else None
            execute = _runs_of(program.run if cluster is None else cluster.run_case)
            at_once = concurrency if cluster is None else await cluster.count_cases()
        at_once = at_once or await count_processors(backend) * (2 if supervisors is not None and clock == "cpu" else 1)
        return await _Session(execute, limit(request), cases, check, on_verdict).run(at_once, stop_early)


class _Session:
    """One call of `ajudge`, after the build."""

    def __init__(
        self,
        execute: Execute,
        request_for: Callable[[Case], ExecRequest],
        cases: Sequence[Case],
        check: Checker,
        on_verdict: OnVerdict | None,
    ) -> None:
        self._execute, self._request_for, self._cases = execute, request_for, cases
        self._requests: list[ExecRequest] = []
        self._check, self._on_verdict = check, on_verdict
        self._verdicts: dict[int, Verdict] = {}

    async def run(self, concurrency: int, stop_early: bool) -> list[Verdict]:
        doubtful: list[int] = []
        runs = run_many(self._execute, self._make_requests(), concurrency)
        async with aclosing(runs) as outcomes:  # type: ignore[type-var]
            async for outcome in outcomes:
                if is_doubtful(outcome, self._requests[outcome.index]):
                    doubtful.append(outcome.index)
                else:
                    self._settle(outcome)
                if stop_early and self._is_decided():
                    break
        for index in sorted(doubtful):
            if stop_early and self._is_decided():
                break
            async with run_alone():
                outcome = await attempt(self._execute, index, self._requests[index])
            self._settle(outcome)  # a checker may judge, too
        return self._prefix() if stop_early else [self._verdicts[index] for index in range(len(self._cases))]

    def _make_requests(self) -> Iterator[ExecRequest]:
        for case in self._cases:
            self._requests.append(self._request_for(case))
            yield self._requests[-1]

    def _settle(self, outcome: Outcome) -> None:
        verdict = self._verdicts[outcome.index] = self._judge(outcome)
        if self._on_verdict is not None:
            self._on_verdict(outcome.index, verdict)

    def _judge(self, outcome: Outcome) -> Verdict:
        found = verdict_of(outcome, self._requests[outcome.index].limits)
        if isinstance(found, Verdict):
            return found
        try:
            is_right = self._check(self._cases[outcome.index], found)
            if isinstance(is_right, Coroutine):  # it would count as true
                is_right.close()
                raise TypeError("a checker cannot be a coroutine function")
        except Exception as error:  # the caller's function: the other cases stand
            failed = CheckerFailed(f"the checker raised {type(error).__name__}: {error}")
            failed.__cause__ = error
            return Verdict("checker_error", found, failed)
        return Verdict("accepted" if is_right else "wrong_answer", found)

    def _prefix(self) -> list[Verdict]:
        """The verdicts from the first on, up to a gap or the first that is not accepted."""
        found: list[Verdict] = []
        while len(found) in self._verdicts and (not found or found[-1].ok):
            found.append(self._verdicts[len(found)])
        return found

    def _is_decided(self) -> bool:
        """Whether more verdicts could not change the prefix."""
        prefix = self._prefix()
        return bool(prefix) and not prefix[-1].ok


def _request_maker(request: ExecRequest, clock: Clock, max_elapsed: float) -> Callable[[Case], ExecRequest]:
    """Makes the request of a case, with its input and its limits. Most cases have the same limits."""

    @cache
    def without_input(timeout: float, memory_mb: int | None) -> ExecRequest:
        limits = request.limits
        if memory_mb is not None:
            limits = replace(limits or Limits(), memory_mb=memory_mb)
        if clock == "wall":
            return replace(request, timeout=timeout, limits=limits)
        limits = (limits or Limits()).cap_with(Limits(cpu_seconds=timeout))
        elapsed = min(timeout * _SLEEPING_FACTOR + _SLEEPING_SECONDS, max_elapsed)
        return replace(request, timeout=elapsed, limits=limits)

    return lambda case: replace(without_input(case.timeout or request.timeout, case.memory_mb), stdin=case.stdin)


def _normalise(request: ExecRequest, cases: Sequence[Case]) -> ExecRequest:
    """The memory limit where a case can replace it, and a cap on output that the right answer does not meet."""
    limits = request.limits or Limits()
    if request.memory_limit_mb is not None:
        limits = limits.cap_with(Limits(memory_mb=request.memory_limit_mb))
    if limits.output_bytes is None:
        longest = max((len(case.expected_bytes) for case in cases), default=0)
        limits = replace(limits, output_bytes=min(max(DEFAULT_OUTPUT_BYTES, 2 * longest), 1 << 30))
    return replace(request, memory_limit_mb=None, limits=limits, ends_at_output_limit=True)


async def _judge_interactively(
    program: ExecRequest | Program,
    interactor: ExecRequest,
    cases: Sequence[Case],
    backend: SandboxBackend,
    limit: Callable[[ExecRequest], Callable[[Case], ExecRequest]],
    concurrency: int | None,
    stop_early: bool,
    on_verdict: OnVerdict | None,
) -> list[Verdict]:
    from warmcell.judging.interactor import Interaction

    request = _normalise(program if isinstance(program, ExecRequest) else program.request, cases)
    built = await _build(backend, request)
    if isinstance(built, Verdict):
        return _repeat(built, cases, stop_early, on_verdict)
    interaction, request_for = Interaction(backend, interactor), limit(request)
    verdicts: list[Verdict | None] = [None] * len(cases)
    places = asyncio.Semaphore(concurrency or 1)
    is_over = False

    async def run(index: int) -> None:
        nonlocal is_over
        async with places:
            if not is_over:
                verdict = verdicts[index] = await interaction.run(request_for(cases[index]), cases[index])
                is_over = is_over or (stop_early and not verdict.ok)
                if on_verdict is not None:
                    on_verdict(index, verdict)

    try:
        await interaction.prepare()
        async with asyncio.TaskGroup() as tasks:
            for index in range(len(cases)):
                tasks.create_task(run(index))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        if built is not None:
            await built.aclose()
    found = [verdict for verdict in verdicts if verdict is not None]
    failed = next((index for index, verdict in enumerate(found) if not verdict.ok), len(found))
    return found[: failed + 1] if stop_early else found  # those at work beside the first failure have ended too


async def _build(backend: SandboxBackend, request: ExecRequest) -> Program | Verdict | None:
    """The program, or the verdict if it cannot be built. None for a backend that does not build."""
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
        verdict = failure_verdict(error)
        return verdict if verdict.status == "host_error" else replace(verdict, status="build_error")


def _repeat(verdict: Verdict, cases: Sequence[Case], stop_early: bool, on_verdict: OnVerdict | None) -> list[Verdict]:
    """The verdicts on a program that cannot be built."""
    verdicts = [verdict] * (min(1, len(cases)) if stop_early else len(cases))
    for index in range(len(verdicts)):
        if on_verdict is not None:
            on_verdict(index, verdict)
    return verdicts


def _unbuilt(backend: SandboxBackend | None) -> Execute:
    async def execute(request: ExecRequest) -> ExecResult:
        return await (backend or shared_backend()).execute(request)

    return execute


def _runs_of(run: Callable[..., Awaitable[ExecResult]]) -> Execute:
    async def execute(request: ExecRequest) -> ExecResult:
        return await run(request.stdin, request.args, request.timeout, limits=request.limits)

    return execute
