"""Supervisor processes: further Python interpreters that start runs, for hosts where one is the bottleneck.

Each is a child of this program with its own backend, made like the caller's.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import AsyncIterator, Sized
from contextlib import aclosing
from functools import partial
from typing import Any

from warmcell.backends.many import Execute, OnProgress, Requests, run_many
from warmcell.backends.supervisor_process import BackendFactory, IdleSupervisors, SupervisorProcess, death, end_all
from warmcell.backends.supervisor_service import frame
from warmcell.core import events
from warmcell.core.errors import InvalidRequest
from warmcell.core.light import on_error
from warmcell.core.output_events import Outcome
from warmcell.core.request_checks import check_whole
from warmcell.core.types import ExecRequest, ExecResult
from warmcell.lifetime.threads import in_thread

#: Fewer processors than this need only one supervisor; processors per supervisor; and the fewest runs for which
#: starting another is worth it.
_FEWEST_PROCESSORS, _PROCESSORS_EACH, _FEWEST_RUNS = 8, 2, 200
_MOST = 64


def choose_processes(processes: object, work: object, processors: int | None = None) -> int:
    """How many supervisors to start: `processes`, or if that is None a number chosen from the processors and the work.

    `work` has a length if its size is known. With event listeners, which get runs of this process only, it is 1.
    """
    if processes is None:
        processors = len(os.sched_getaffinity(0)) if processors is None else processors
        if processors < _FEWEST_PROCESSORS or not isinstance(work, Sized) or events.listeners:
            return 1
        return max(1, min(processors // _PROCESSORS_EACH, len(work) // _FEWEST_RUNS))
    return check_whole("processes", processes, 1, _MOST)


def supervisors_for(backend: object, processes: object, work: object) -> Supervisors | None:
    """The supervisors for runs of this backend, not started yet; None if this process starts them itself."""
    chosen = choose_processes(processes, work)
    factory: BackendFactory | None = getattr(backend, "recipe", None)
    if chosen == 1 or (factory is None and processes is None):
        return None
    if factory is None:
        reason = "this backend has an audit, updated rules or an implementation that exists in this process only"
        raise InvalidRequest(reason, field="processes", hint="processes=1")
    return Supervisors(factory, chosen, getattr(backend, "idle_supervisors", None))


class Supervisors:
    """An async context manager. `execute` gives a request to the supervisor with the fewest runs in progress.

    With `idle`, it begins with those that an earlier batch has left there, and leaves its own for the next.
    """

    def __init__(self, factory: BackendFactory, processes: int, idle: IdleSupervisors | None = None) -> None:
        try:
            self._factory = frame(factory)
        except Exception as error:
            raise InvalidRequest(
                f"this backend cannot be recreated in another process: {error}", field="processes", hint="processes=1"
            ) from None
        self._processes = processes
        self._idle = idle
        self._members: list[SupervisorProcess] = []
        self._were_ready = False

    async def execute(self, request: ExecRequest) -> ExecResult:
        return await self._run(request, None)

    def runner_of(self, program: ExecRequest, meanwhile: Execute | None = None) -> Execute:
        """`execute` for runs of a program that each supervisor builds once; its artefact is cached.

        `meanwhile` carries out a share of the runs until all supervisors are ready.
        """
        return self.runner(meanwhile, pickle.dumps(program))

    def runner(self, meanwhile: Execute | None, program: bytes | None = None) -> Execute:
        """`execute`, but `meanwhile` carries out a share of the runs until all supervisors are ready."""
        here = 0

        async def execute(request: ExecRequest) -> ExecResult:
            nonlocal here
            if meanwhile is None or self._are_ready or self._fewest_runs(self._ready) < here:
                return await self._run(request, program)
            here += 1
            try:
                return await meanwhile(request)
            finally:
                here -= 1

        return execute

    @property
    def _are_ready(self) -> bool:
        """All of them. Ready ones stay so."""
        self._were_ready = self._were_ready or all(member.is_ready for member in self._members)
        return self._were_ready

    @property
    def _ready(self) -> list[SupervisorProcess]:
        """Not those that died or do not end their runs: they have the fewest, and would get all others."""
        return [member for member in self._members if member.is_ready and member.may_run]

    @staticmethod
    def _fewest_runs(members: list[SupervisorProcess]) -> float:
        return min((len(member.waiting) for member in members), default=float("inf"))

    async def _run(self, request: ExecRequest, program: bytes | None) -> ExecResult:
        ready = self._members if self._are_ready else self._ready or self._members
        member = min(ready, key=lambda member: (not member.may_run, len(member.waiting)))
        return await member.run(request, program)

    @property
    def is_complete(self) -> bool:
        """Whether all of them are still there."""
        return all(member.is_connected for member in self._members)

    async def warm_up(self) -> None:
        """Returns when each has carried out a run or ended."""
        for member in self._members:
            await member.settled.wait()
        if not self.is_complete:
            raise death()

    async def __aenter__(self) -> Supervisors:
        async with on_error(self._end):
            self._members = self._idle.take(self._processes) if self._idle is not None else []
            while len(self._members) < self._processes:
                self._members.append(SupervisorProcess(self._factory))
            for member in self._members:
                await member.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._idle is None or not all(member.is_idle for member in self._members):
            await self._end()
            return
        for member in self._members:
            member.disconnect()
        if not self._idle.keep(self._members):
            await self._end()

    async def _end(self) -> None:
        for member in self._members:
            member.hang_up()
        await in_thread(partial(end_all, self._members))


def run_many_of(
    backend: Any,
    requests: Requests,
    concurrency: int | None,
    processes: int | None,
    on_progress: OnProgress | None = None,
) -> AsyncIterator[Outcome]:
    """`run_many` of every backend: outcomes as they finish, see `backends.many`.

    `processes`: how many Python processes start the runs (None: from the processors and the number of requests).
    """
    supervisors = supervisors_for(backend, processes, requests)
    if supervisors is None:
        return run_many(backend.execute, requests, concurrency, on_progress)
    execute = supervisors.runner(getattr(backend, "execute_here", backend.execute))
    return _run_many_on(supervisors, execute, requests, concurrency, on_progress)


async def _run_many_on(
    supervisors: Supervisors,
    execute: Execute,
    requests: Requests,
    concurrency: int | None,
    on_progress: OnProgress | None,
) -> AsyncIterator[Outcome]:
    runs = run_many(execute, requests, concurrency, on_progress)
    async with supervisors, aclosing(runs) as outcomes:  # type: ignore[type-var]
        async for outcome in outcomes:
            yield outcome
