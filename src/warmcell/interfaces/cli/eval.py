"""`warmcell eval`: samples for tasks, verdicts into a file, a summary and a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warmcell.backends.progress import ProgressBar
from warmcell.backends.registry import get_backend
from warmcell.core.errors import InvalidRequest
from warmcell.evaluation.evaluate import Progress
from warmcell.evaluation.evaluate import evaluate as evaluate_samples
from warmcell.evaluation.report import write_report
from warmcell.evaluation.summary import Summary
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import OK, OUR_FAILURE, UsageError
from warmcell.interfaces.cli.messages import is_quiet, say_warning
from warmcell.interfaces.cli.render import print_json

if TYPE_CHECKING:
    from argparse import Namespace


def evaluate(arguments: Namespace) -> int:
    """Return 0 if every sample has a verdict, whatever it is."""
    ks = _ks(arguments.k)
    jobs = options.whole_number("--jobs", arguments.jobs, 1024)
    summary = _evaluate(arguments, jobs)
    scores = _scores(summary, ks)
    if arguments.report:
        _write_report(arguments, summary, scores)
    if arguments.json:
        print_json(_to_plain(summary, scores))
    else:
        _print_table(summary, scores)
    _warn(summary)
    return OUR_FAILURE if summary.not_judged else OK


def _evaluate(arguments: Namespace, jobs: int | None) -> Summary:
    enforcer = None if arguments.enforcer == "none" else arguments.enforcer
    backend: Any = get_backend("process", enforcer=enforcer)
    try:
        with ProgressBar("judged", is_quiet=is_quiet()) as bar:

            def show(progress: Progress) -> None:
                bar.update(progress.done, progress.total, describe(progress))

            files, out = (arguments.tasks, arguments.samples), arguments.out
            return evaluate_samples(*files, out=out, concurrency=jobs, backend=backend, on_progress=show)
    finally:
        backend.close()


def describe(progress: Progress) -> str:
    """Rate, time left and verdicts: `12.5/s, 3 min left, accepted 10, wrong_answer 2`."""
    left = progress.remaining_seconds
    words = [f"{progress.rate:.1f}/s"]
    if left is not None:
        words.append(f"{left / 60:.0f} min left" if left >= 90 else f"{left:.0f} s left")
    return ", ".join([*words, *(f"{status} {count}" for status, count in progress.counts.items())])


def _ks(text: str | None) -> list[int] | None:
    if text is None:
        return None
    numbers = [options.whole_number("--k", word, 1_000_000) for word in text.split(",")]
    return sorted({number for number in numbers if number is not None})


def _scores(summary: Summary, ks: list[int] | None) -> dict[int, float]:
    if ks is None:
        return dict(summary.pass_at)
    scores: dict[int, float] = {}
    for k in ks:
        try:
            scores[k] = summary.pass_at_k(k)
        except InvalidRequest as error:
            say_warning(f"no pass@{k}: {error.message.removeprefix('k: ')}")
    return scores


def _write_report(arguments: Namespace, summary: Summary, scores: dict[int, float]) -> None:
    try:
        write_report(arguments.report, summary, scores, arguments.out, arguments.tasks)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"--report: {arguments.report}: {reason}", "the verdicts are complete: run it again") from None


def _warn(summary: Summary) -> None:
    if summary.not_judged:
        say_warning(f"{summary.not_judged} samples could not be judged and are in no score", "run the command again")
    if summary.samples_without_task:
        say_warning(f"{summary.samples_without_task} samples name a task that is not in the file")
    if summary.tasks_without_samples:
        say_warning(f"{summary.tasks_without_samples} tasks have no sample and are in no score")


def _print_table(summary: Summary, scores: dict[int, float]) -> None:
    total = max(1, sum(summary.counts.values()))
    print(f"{'verdict':14}  {'samples':>9}  {'share':>7}")
    for status, count in summary.counts.items():
        print(f"{status:14}  {count:9}  {count / total:7.1%}")
    print(f"{summary.tasks} tasks, {summary.samples} samples, {summary.judged_now} judged in {summary.seconds:.1f} s")
    for k, score in scores.items():
        print(f"pass@{k}: {score:.4f}")


def _to_plain(summary: Summary, scores: dict[int, float]) -> dict[str, Any]:
    names = ("tasks", "samples", "tasks_without_samples", "samples_without_task", "judged_now")
    return {
        "counts": dict(summary.counts),
        "pass_at": {str(k): score for k, score in scores.items()},
        **{name: getattr(summary, name) for name in names},
        "seconds": round(summary.seconds, 3),
    }
