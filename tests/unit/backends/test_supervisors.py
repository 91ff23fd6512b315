"""Runs that several processes of this program start: the same results, errors and cancellations as by one."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from tests.helpers import naming, until, until_async

from warmcell import Case, ExecRequest, ExecResult, ProcessBackend, Verdict, WasmBackend, errors, judge
from warmcell.backends import supervisor_process
from warmcell.backends.supervisor_process import SupervisorProcess
from warmcell.backends.supervisor_service import READY, _Programs, _Service, frame, unframe
from warmcell.backends.supervisors import Supervisors, choose_processes
from warmcell.cage.linux.processes import children
from warmcell.core import events
from warmcell.judging import judge as judging
from warmcell.lifetime.run import Run, RunCancelled

pytestmark = pytest.mark.needs("linux", "user namespaces")
SUM = "print(sum(map(int, input().split())))"


@pytest.fixture
def started_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs wait for the supervisors, and are not carried out here meanwhile."""
    runner = Supervisors.runner
    monkeypatch.setattr(Supervisors, "runner", lambda self, meanwhile, program=None: runner(self, None, program))


@pytest.mark.parametrize(
    ("processes", "work", "processors", "chosen"),
    [
        (None, range(10_000), 2, 1),
        (None, range(10_000), 7, 1),
        (None, range(199), 16, 1),
        (None, range(400), 16, 2),
        (None, range(10_000), 16, 8),
        (None, range(700), 16, 3),
        (None, iter(range(10_000)), 16, 1),
        (3, range(1), 2, 3),
        (1, range(10_000), 64, 1),
    ],
)
def test_how_many_there_are(
    processes: int | None, work: object, processors: int, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "listeners", ())  # of other tests
    assert choose_processes(processes, work, processors) == chosen


async def test_the_program_shares_a_batch_with_supervisors_that_are_starting() -> None:
    first, second = FakeMember(is_ready=False), FakeMember(is_ready=False)
    supervisors = Supervisors(list, 2)
    supervisors._members = [first, second]  # type: ignore[list-item]
    here: list[ExecRequest] = []

    async def run_here(request: ExecRequest) -> ExecResult:
        here.append(request)
        await asyncio.sleep(100)
        raise AssertionError

    execute = supervisors.runner(run_here)
    tasks = []

    async def start(count: int) -> tuple[int, int, int]:
        for _ in range(count):
            tasks.append(asyncio.create_task(execute(ExecRequest("python", "1", 1))))
            await asyncio.sleep(0)
        return len(here), len(first.waiting), len(second.waiting)

    assert await start(2) == (2, 0, 0)
    first.is_ready = True
    assert await start(4) == (3, 3, 0)
    second.is_ready = True
    assert await start(5) == (3, 4, 4)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_ready_one_that_died_gets_no_runs_while_the_others_start() -> None:
    """It had the fewest runs, so all that remained failed."""
    dead, starting = FakeMember(is_ready=True), FakeMember(is_ready=False)
    dead.may_run = False
    supervisors = Supervisors(list, 2)
    supervisors._members = [dead, starting]  # type: ignore[list-item]
    here: list[ExecRequest] = []

    async def run_here(request: ExecRequest) -> ExecResult:
        here.append(request)
        return await asyncio.Future[ExecResult]()

    request, execute = ExecRequest("python", "1", 1), supervisors.runner(run_here)
    tasks = [asyncio.ensure_future(execute(request)) for _ in range(3)]
    tasks.append(asyncio.ensure_future(supervisors.execute(request)))
    await asyncio.sleep(0)
    assert (len(here), len(dead.waiting), len(starting.waiting)) == (3, 0, 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class FakeMember:
    may_run = True

    def __init__(self, is_ready: bool) -> None:
        self.is_ready = is_ready
        self.waiting: list[ExecRequest] = []

    async def run(self, request: ExecRequest, program: ExecRequest | None) -> ExecResult:
        self.waiting.append(request)
        await asyncio.sleep(100)
        raise AssertionError


@pytest.mark.parametrize(
    ("clock", "processes", "at_once"), [("cpu", 2, 8), ("wall", 2, 4), ("cpu", 1, 4), ("wall", 1, 4)]
)
def test_cases_overlap_where_processor_time_is_limited(
    clock: Literal["cpu", "wall"], processes: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def count_four(backend: object) -> int:
        return 4

    async def remember(session: object, concurrency: int, stop_early: bool) -> list[Verdict]:
        assert concurrency == at_once
        return []

    monkeypatch.setattr(judging, "count_processors", count_four)
    monkeypatch.setattr(judging._Session, "run", remember)
    assert judge(ExecRequest("python", SUM, 20), [Case("1", "1")], clock=clock, processes=processes) == []


@pytest.mark.parametrize("processes", [0, -1, True, 1.5, "2", 65])
def test_other_numbers_are_refused(processes: object) -> None:
    with pytest.raises(errors.InvalidRequest, match="processes"):
        choose_processes(processes, [])


def test_listeners_hear_of_runs_in_this_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "listeners", (print,))
    assert choose_processes(None, range(10_000), 16) == 1


@pytest.mark.usefixtures("started_at_once")
async def test_results_and_errors_are_those_of_one_process() -> None:
    requests = [
        ExecRequest("python", "print(6 * 7)", 30),
        ExecRequest("python", "raise SystemExit(3)", 30),
        ExecRequest("python", "while True: pass", 1),
        ExecRequest("python", "b'x' * (1 << 28)", 30, memory_limit_mb=64),
        ExecRequest("command", "cat", 30, stdin=b"\xff\x00"),
    ]
    found = []
    for processes in (1, 2):
        async with ProcessBackend() as backend:
            outcomes = [outcome async for outcome in backend.run_many(requests, processes=processes)]
        outcomes.sort(key=lambda outcome: outcome.index)
        found.append(
            [(o.index, o.result and (o.result.stdout_bytes, o.result.exit_code), type(o.error)) for o in outcomes]
        )
    assert found[0] == found[1]
    assert found[0][2][2] is errors.ExecutionTimeout


@pytest.mark.usefixtures("started_at_once")
@pytest.mark.parametrize("language", ["python", pytest.param("c", marks=pytest.mark.needs("gcc"))])
def test_verdicts_are_those_of_one_process(language: str) -> None:
    source = '#include <stdio.h>\nint main(void){int a,b;scanf("%d %d",&a,&b);printf("%d",a+b);return 0;}'
    request = ExecRequest(language, SUM if language == "python" else source, timeout=20)
    cases = [Case(f"{number} 1", str(number + 1 + (number == 3))) for number in range(8)]
    statuses = [[verdict.status for verdict in judge(request, cases, processes=many)] for many in (1, 2)]
    assert statuses[0] == statuses[1] and statuses[0].count("wrong_answer") == 1


@pytest.mark.needs("gcc")
def test_a_program_that_does_not_compile_is_a_build_error() -> None:
    verdicts = judge(ExecRequest("c", "int main(", timeout=20), [Case("", "")] * 3, processes=2)
    assert [verdict.status for verdict in verdicts] == ["build_error"] * 3


def _pids(supervisors: Supervisors) -> list[int]:
    return [member._process.pid for member in supervisors._members if member._process is not None]


@pytest.mark.parametrize("delay", [0, 0.5], ids=["before it started", "while it runs"])
async def test_cancelling_ends_the_run_and_the_next_one_is_right(delay: float) -> None:
    backend = ProcessBackend()
    assert backend.recipe is not None
    async with Supervisors(backend.recipe, 1) as supervisors:
        slow = asyncio.create_task(supervisors.execute(ExecRequest("python", "import time; time.sleep(100)", 200)))
        await asyncio.sleep(delay)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert (await supervisors.execute(ExecRequest("python", "print(1)", 30))).stdout == "1\n"
        pids = _pids(supervisors)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    await backend.aclose()


class _Built:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_cancelling_a_run_that_waits_for_a_build_leaves_the_build_alone() -> None:
    may_end, built = threading.Event(), []

    def build(request: ExecRequest) -> _Built:
        assert may_end.wait(60)
        built.append(_Built())
        return built[0]

    programs, program = _Programs(build), pickle.dumps(ExecRequest("python", "pass", 1))
    run = Run()
    threading.Timer(0.1, run.cancel).start()
    with pytest.raises(RunCancelled), programs.use(program, run):
        pass
    may_end.set()
    with programs.use(program, Run()) as found:
        assert [found] == built, "built once"


class _Ending(dict[int, Run]):
    """Runs of which each ends right after it was found."""

    def __contains__(self, number: object) -> bool:
        return True


class _Backend:
    def build_blocking(self, request: ExecRequest) -> _Built:
        return _Built()

    def execute_blocking(self, request: ExecRequest, *, run: Run | None = None) -> object:
        if run is None:
            raise errors.BackendUnavailable("not here")
        return threading.Lock() if request.code == "lock" else None


def _answers(*messages: tuple[int, bytes | None, bytes | None]) -> dict[int, tuple[object, Exception | None]]:
    """Of a service that gets these messages: result and error by number."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        service = _Service(theirs, _Backend())
        service._runs = _Ending()
        service.run(iter(messages))
        received, found = bytearray(), dict[int, tuple[object, Exception | None]]()
        ours.settimeout(60)
        while len(found) < 1 + sum(request is not None for _, request, _ in messages):
            received += ours.recv(1 << 16)
            found |= {number: (result, error) for number, result, error in unframe(received)}
    return found


def test_a_run_that_ends_while_its_cancellation_arrives_is_left_alone() -> None:
    request = pickle.dumps(ExecRequest("python", "pass", 1))
    assert _answers((1, None, None), (2, request, None)) == {READY: (None, None), 2: (None, None)}


def test_a_result_that_cannot_be_sent_is_a_failure_of_ours() -> None:
    (result, error) = _answers((1, pickle.dumps(ExecRequest("python", "lock", 1)), None))[1]
    assert result is None and isinstance(error, errors.BackendUnavailable) and "pickle" in str(error)


def test_the_programs_that_were_used_last_are_kept() -> None:
    programs = _Programs(lambda request: _Built())
    all_of_them = [pickle.dumps(ExecRequest("python", f"print({number})", 1)) for number in range(40)]
    with programs.use(all_of_them[0], Run()) as first:
        found = []
        for program in all_of_them[1:]:
            with programs.use(program, Run()) as built:
                found.append(built)
        assert not first.is_closed, "it is in use"
        assert [built.is_closed for built in found] == [True] * 8 + [False] * 31
    programs.close()
    assert all(built.is_closed for built in found)


def test_a_failed_build_fails_for_each_run() -> None:
    def build(request: ExecRequest) -> _Built:
        raise errors.BackendUnavailable("no")

    programs, program = _Programs(build), pickle.dumps(ExecRequest("python", "pass", 1))
    for _ in range(2):
        with pytest.raises(errors.BackendUnavailable, match="no"), programs.use(program, Run()):
            pass


def test_a_build_that_the_host_failed_is_repeated_for_the_next_run() -> None:
    failures: list[Exception] = [errors.BackendBusy(1), errors.ExecutionFailed("overloaded"), OSError("odd")]

    def build(request: ExecRequest) -> _Built:
        if failures:
            raise failures.pop()
        return _Built()

    programs, program = _Programs(build), pickle.dumps(ExecRequest("python", "pass", 1))
    for kind in (OSError, errors.ExecutionFailed, errors.BackendBusy):
        with pytest.raises(kind), programs.use(program, Run()):
            pass
    with programs.use(program, Run()) as first, programs.use(program, Run()) as second:
        assert first is second, "a program that was built is kept"


def _pids_named(name: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            if path.read_text().strip() == name:
                found.append(int(path.parent.name))
    return found


async def test_one_that_dies_is_a_failure_of_ours_for_its_runs_alone() -> None:
    """The guests end when they are told to, after one supervisor was killed."""
    backend = ProcessBackend()
    assert backend.recipe is not None
    name = f"told-{os.getpid()}"
    prepare = "import signal, time\ntold = []\nsignal.signal(signal.SIGUSR1, lambda *_: told.append(1))\n"
    code = prepare + naming(name) + "while not told: time.sleep(0.01)\nprint(1)"
    async with Supervisors(backend.recipe, 2) as supervisors:
        tasks = [asyncio.create_task(supervisors.execute(ExecRequest("python", code, 60))) for _ in range(4)]
        await until_async(lambda: len(_pids_named(name)) == 4)
        os.kill(_pids(supervisors)[0], signal.SIGKILL)
        for pid in _pids_named(name):
            with suppress(ProcessLookupError):  # its supervisor is gone
                os.kill(pid, signal.SIGUSR1)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, errors.SandboxError)]
    assert len(failures) == 2 and all(failure.fault == "host" for failure in failures)
    assert sum(getattr(outcome, "stdout", "") == "1\n" for outcome in outcomes) == 2
    await backend.aclose()


async def test_one_that_died_gets_no_further_runs() -> None:
    backend = ProcessBackend()
    assert backend.recipe is not None
    async with Supervisors(backend.recipe, 2) as supervisors:
        await supervisors.warm_up()
        os.kill(_pids(supervisors)[0], signal.SIGKILL)
        while supervisors.is_complete:
            await asyncio.sleep(0.01)
        request = ExecRequest("python", "import time; time.sleep(0.2); print(1)", 60)
        results = await asyncio.gather(*(supervisors.execute(request) for _ in range(4)))
    assert [result.stdout for result in results] == ["1\n"] * 4
    await backend.aclose()


@pytest.mark.parametrize("ends_late", [False, True])
async def test_a_cancelled_run_that_does_not_end_leaves_the_runs_of_others_alone(
    ends_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_process, "_END_SECONDS", 0.1)
    ours, theirs = socket.socketpair()
    member, kills = SupervisorProcess(frame("recipe")), list[bool]()
    monkeypatch.setattr(member, "_start", lambda: ours)
    monkeypatch.setattr(member, "_kill", lambda: kills.append(True))
    with theirs:
        await member.connect()
        request = ExecRequest("python", "pass", 60)
        stubborn, other = (asyncio.create_task(member.run(request, None)) for _ in range(2))
        await asyncio.sleep(0)
        stubborn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stubborn
        assert not kills and not member.may_run
        if ends_late:
            theirs.sendall(frame((0, None, RunCancelled())))
        theirs.sendall(frame((1, "result", None)))
        assert str(await other) == "result"
        assert kills == ([] if ends_late else [True])
        assert member.may_run is ends_late
        member.hang_up()


@pytest.mark.usefixtures("started_at_once")
async def test_leaving_the_iteration_leaves_no_process() -> None:
    # Such as the manager of the default backend. The kernel's list may lack one while another child ends.
    others = set[int]().union(*(children(os.getpid()) for _ in range(5)))
    started = set[int]()

    def has_two() -> bool:
        started.update(set(children(os.getpid())) - others)
        return len(started) >= 2

    async with ProcessBackend() as backend:
        requests = [ExecRequest("python", "import time; time.sleep(0.2)", 60)] * 50
        outcomes = backend.run_many(requests, concurrency=4, processes=2)
        await anext(outcomes)
        await until_async(has_two)
        await outcomes.aclose()
    until(lambda: not started.intersection(children(os.getpid())))


@pytest.mark.usefixtures("started_at_once")
async def test_webassembly_has_them_too() -> None:
    module = '(module (func (export "_start")))'
    async with WasmBackend() as backend:
        requests = [ExecRequest("wasm", module, 30)] * 6
        outcomes = [outcome async for outcome in backend.run_many(requests, processes=2)]
    assert sorted(outcome.index for outcome in outcomes) == list(range(6))
    assert all(outcome.result is not None and outcome.result.ok for outcome in outcomes)


def test_what_only_this_process_has_is_refused_or_kept_here() -> None:
    with ProcessBackend(audit=lambda line: None) as backend:
        assert backend.recipe is None
        with pytest.raises(errors.InvalidRequest, match="this process only"):
            backend.run_many([], processes=2)
