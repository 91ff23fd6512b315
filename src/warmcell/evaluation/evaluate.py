"""evaluate: tasks and samples in, verdicts as they come out. Goes on where an interruption ended it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

from warmcell.backends.many import check_concurrency, count_processors
from warmcell.backends.process.backend import ProcessBackend
from warmcell.backends.shared import shared_backend
from warmcell.backends.supervisors import Supervisors, supervisors_for
from warmcell.core.contracts import SandboxBackend
from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass
from warmcell.core.types import ExecResult
from warmcell.evaluation.formats import read_task
from warmcell.evaluation.json_lines import Source, read_records
from warmcell.evaluation.samples import Ledger, SampleIndex
from warmcell.evaluation.summary import Summary, estimate_all
from warmcell.evaluation.tasks import Sample, Task
from warmcell.evaluation.verdict_log import Row, VerdictLog
from warmcell.judging.judge import ajudge
from warmcell.judging.verdicts import Verdict
from warmcell.lifetime.threads import in_thread

#: How much of a failed program's output goes into its row.
_MOST_OUTPUT = 1000
#: Backends of images that no task uses now.
_MOST_IDLE = 4


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an evaluation is. `done` includes the verdicts of earlier starts, `rate` (per second) does not."""

    done: int
    total: int
    counts: dict[str, int]
    rate: float

    @property
    def remaining_seconds(self) -> float | None:
        return (self.total - self.done) / self.rate if self.rate else None


OnProgress = Callable[[Progress], object]


def evaluate(
    tasks: Source,
    samples: Source,
    *,
    out: str | os.PathLike[str] = "verdicts.jsonl",
    concurrency: int | None = None,
    processes: int | None = None,
    backend: SandboxBackend | None = None,
    on_progress: OnProgress | None = None,
) -> Summary:
    """`aevaluate` for code without an event loop."""
    from warmcell.lifetime.portal import portal

    options: dict[str, Any] = {"out": out, "concurrency": concurrency, "processes": processes}
    return portal.call(aevaluate, tasks, samples, **options, backend=backend, on_progress=on_progress)


async def aevaluate(
    tasks: Source,
    samples: Source,
    *,
    out: str | os.PathLike[str] = "verdicts.jsonl",
    concurrency: int | None = None,
    processes: int | None = None,
    backend: SandboxBackend | None = None,
    on_progress: OnProgress | None = None,
) -> Summary:
    """Judges every sample of every task that has no verdict in `out` yet, and appends the verdicts as they come.

    `tasks` and `samples` are files of JSON lines or iterables of dicts; tasks are read one at a time. `concurrency`
    samples are judged at a time (None: twice the processors, of all nodes if the backend is a cluster; of this host for
    samples in an image, which run here), by `processes` Python processes (None: from the processors and the number of
    samples).
    """
    places_here = check_concurrency(concurrency)
    usual = backend if backend is not None else shared_backend()
    async with AsyncExitStack() as cleanup:
        evaluation = await in_thread(
            lambda: _Evaluation(tasks, samples, os.fspath(out), on_progress), discard=lambda made: made.close()
        )
        cleanup.callback(evaluation.close)
        supervisors = supervisors_for(usual, processes, range(evaluation.total))
        if supervisors is not None:
            await cleanup.enter_async_context(supervisors)
        backends = ImageBackends(usual, places_here)
        cleanup.push_async_callback(backends.aclose)
        places = places_here if concurrency is not None else 2 * await count_processors(usual)
        return await evaluation.run(places, backends, supervisors)


class _Evaluation:
    """One call of `aevaluate`."""

    def __init__(self, tasks: Source, samples: Source, out: str, on_progress: OnProgress | None) -> None:
        with ExitStack() as cleanup:
            self._log = VerdictLog(out)
            cleanup.callback(self._log.close)
            self._ledger = Ledger()
            cleanup.callback(self._ledger.close)
            self._ledger.load(self._log.rows())
            self._samples = SampleIndex(samples, self._ledger.database)
            cleanup.callback(self._samples.close)
            self._ledger.forget_missing_samples()
            self.close = cleanup.pop_all().close
        self._tasks, self._on_progress = tasks, on_progress
        self.total, self._counts = self._samples.count(), self._ledger.counts()
        self._judged, self._started = 0, time.monotonic()

    async def run(self, places: int, backends: ImageBackends, supervisors: Supervisors | None) -> Summary:
        work = self._work()

        async def judge_next() -> None:
            for task, number, sample, digest in work:
                async with backends.use(task.image) as backend:
                    verdicts = await _judge(task, sample, backend, None if task.image else supervisors)
                self._record(_row(task, number, digest, verdicts))

        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(places):
                    workers.create_task(judge_next())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return self._summary()

    def _work(self) -> Iterator[tuple[Task, int, Sample, str]]:
        """The samples without a verdict, in the order of the tasks."""
        for place, record in read_records(self._tasks, "tasks"):
            task = read_task(record, place)
            mark = hashlib.sha256(json.dumps(record, sort_keys=True, default=str).encode()).digest()
            found = 0
            for number, sample in self._samples.of_task(task.id):
                found += 1
                # Of a task with a prompt, the same text as a whole program and as a continuation are two programs.
                kind = b"program\0" if task.prompt and not sample.is_continuation else b""
                digest = hashlib.sha256(mark + kind + sample.text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
                if not self._ledger.has(task.id, number, digest):
                    yield task, number, sample, digest
            self._ledger.add_task(task.id, found, place)

    def _record(self, row: Row) -> None:
        self._log.append(row)
        self._ledger.add(row["task_id"], row["sample"], row["status"], row["digest"])
        self._judged += 1
        self._counts[row["status"]] = self._counts.get(row["status"], 0) + 1
        if self._on_progress is not None:
            rate = self._judged / max(time.monotonic() - self._started, 1e-9)
            done = sum(self._counts.values())
            self._on_progress(Progress(done, self.total, dict(self._counts), rate))

    def _summary(self) -> Summary:
        ledger = self._ledger
        ledger.forget_missing_tasks()
        tally = ledger.tally()
        unknown = "SELECT COUNT(*) FROM sample WHERE task NOT IN (SELECT id FROM task)"
        return Summary(
            counts=ledger.counts(),
            pass_at=estimate_all(tally),
            tally=tally,
            tasks=ledger.one("SELECT COUNT(*) FROM task"),
            samples=self.total,
            tasks_without_samples=ledger.one("SELECT COUNT(*) FROM task WHERE samples = 0"),
            samples_without_task=ledger.one(unknown),
            judged_now=self._judged,
            seconds=time.monotonic() - self._started,
        )


async def _judge(task: Task, sample: Sample, backend: SandboxBackend, supervisors: Supervisors | None) -> list[Verdict]:
    """The verdicts up to the first that is not accepted."""
    try:
        request = task.make_request(sample)
    except InvalidRequest as error:
        if error.field not in ("code", "files") and not str(error.field).startswith("files"):
            raise
        return [Verdict("build_error", None, error)]  # empty, too long, or with characters that no program has
    cases = task.make_cases(secrets.token_hex(16))
    return await ajudge(
        request,
        cases,
        backend=backend,
        checker=task.checker,
        concurrency=1,
        processes=supervisors or 1,
        stop_early=True,
    )


def _row(task: Task, number: int, digest: str, verdicts: list[Verdict]) -> Row:
    last = verdicts[-1]
    result, error = last.result, last.error
    return {
        "task_id": task.id,
        "sample": number,
        "status": last.status,
        "passed": sum(verdict.ok for verdict in verdicts),
        "cases": len(task.cases),
        "time": round(max(verdict.time for verdict in verdicts), 6),
        "cpu_time": round(max(verdict.cpu_time for verdict in verdicts), 6),
        "memory_bytes": max(verdict.memory_bytes for verdict in verdicts),
        "exit_code": None if result is None else result.exit_code,
        "signal": None if result is None else result.signal,
        "error": None if error is None else str(error),
        "output": "" if last.ok else _last_output(result),
        "digest": digest,
    }


def _last_output(result: ExecResult | None) -> str:
    """The end of stderr, or of stdout if that is empty."""
    text = "" if result is None else result.stderr.strip() or result.stdout.strip()
    return text[-_MOST_OUTPUT:]


class ImageBackends:
    """One for each image that tasks name, a few of them kept for the next task; at most `at_once` used at a time.

    They run on this host. Tasks without an image use the caller's backend.
    """

    def __init__(self, usual: SandboxBackend, at_once: int) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._usual = usual
        self._made: OrderedDict[str, ProcessBackend] = OrderedDict()
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def use(self, image: str | None) -> AsyncIterator[SandboxBackend]:
        if image is None:
            yield self._usual
            return
        async with self._places:
            if image not in self._made:
                self._made[image] = ProcessBackend(image=image, user="root")  # as containers run it
            self._made.move_to_end(image)
            self._users[image] = self._users.get(image, 0) + 1
            try:
                yield self._made[image]
            finally:
                self._users[image] -= 1
                await self._close_idle()

    async def _close_idle(self) -> None:
        idle = [image for image in self._made if not self._users[image]]
        for image in idle[: max(0, len(idle) - _MOST_IDLE)]:
            await in_thread(self._made.pop(image).close)

    async def aclose(self) -> None:
        while self._made:
            await in_thread(self._made.popitem()[1].close)
