"""`warmcell judge`: one program, many cases, a table of verdicts."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any, TextIO

from warmcell.backends.progress import ProgressBar
from warmcell.backends.registry import get_backend
from warmcell.core.errors import InvalidRequest
from warmcell.core.lines import one_line
from warmcell.core.types import ExecRequest
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import NOT_ACCEPTED, OK, OUR_FAILURE, UsageError
from warmcell.interfaces.cli.messages import Progress, is_quiet, say_error, write_bytes
from warmcell.interfaces.cli.render import error_to_plain, print_json
from warmcell.interfaces.cli.source import Source, choose, read_code
from warmcell.judging.case_files import read_cases
from warmcell.judging.checkers import Checker, number
from warmcell.judging.judge import judge as judge_program
from warmcell.judging.verdict_files import Format, write_verdicts
from warmcell.judging.verdicts import NOT_JUDGED, Case, Verdict, verdict_to_plain

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


def judge(arguments: Namespace) -> int:
    """Check everything, then judge. Return 0 if every case was accepted."""
    file, language, naming = arguments.file, arguments.language, "name it with --language"
    source = choose(language or file, file if language else None, None, naming)
    jobs = options.whole_number("--jobs", arguments.jobs, 1024)
    try:
        request = _request(arguments, source)
        cases, checker = read_cases(arguments.cases), _checker(arguments)
        interactor = _read_interactor(arguments, request)
    except InvalidRequest as error:
        raise UsageError(error.message.removeprefix("cases: "), error.hint) from None
    out = _open_output(arguments.out)
    with closing(_make_backend(source.language.backend, arguments)) as backend:
        chosen = {"clock": arguments.clock, "concurrency": jobs, "stop_early": arguments.stop_early}
        judged = _judge(request, cases, backend=backend, checker=checker, interactor=interactor, **chosen)
        version = backend.capabilities().versions.get(source.language.name, "") if arguments.json else ""
    verdicts = list(zip(cases, judged, strict=False))  # shorter if it stopped early
    _print_or_write(arguments, out, cases, judged, _to_plain(source, version, verdicts, len(cases)))
    return _status(judged)


def _open_output(path: str | None) -> TextIO | None:
    """Open the --out file. Called before anything is judged, so that no verdict is lost."""
    try:
        return open(path, "w", encoding="utf-8", newline="") if path else None
    except OSError as error:
        raise UsageError(f"--out: {path}: {(error.strerror or str(error)).lower()}") from None


def _print_or_write(
    arguments: Namespace, out: TextIO | None, cases: list[Case], judged: list[Verdict], plain: dict[str, Any]
) -> None:
    """Write lines in the chosen format to the file, or to stdout in place of the table."""
    form: Format = arguments.format or ("csv" if (arguments.out or "").endswith(".csv") else "jsonl")
    if out is not None:
        with out:
            write_verdicts(out, cases, judged, form)
    if arguments.json:
        print_json(plain)
    elif arguments.format and out is None:
        write_verdicts(sys.stdout, cases, judged, form)
    else:
        _print_table(list(zip(cases, judged, strict=False)), len(cases))


def _judge(request: ExecRequest, cases: list[Case], **settings: Any) -> list[Verdict]:
    # The line disappears with the build; from the first verdict on the bar shows progress.
    bar = ProgressBar("judged", len(cases), is_quiet=is_quiet())
    with Progress(f"building {request.language}") as building, bar:

        def advance(index: int, verdict: Verdict) -> None:
            building.stop()
            bar.advance()

        return judge_program(request, cases, on_verdict=advance, **settings)


def _read_interactor(arguments: Namespace, request: ExecRequest) -> ExecRequest | None:
    if arguments.interactor is None:
        return None
    source = choose(arguments.interactor, None, None, "rename the file")
    return ExecRequest(
        source.language.name, read_code(source), request.timeout, memory_limit_mb=request.memory_limit_mb
    )


def _request(arguments: Namespace, source: Source) -> ExecRequest:
    timeout = options.seconds("--timeout", arguments.timeout)
    memory = options.whole_number("--memory", arguments.memory, 1 << 20)
    return ExecRequest(source.language.name, read_code(source), timeout, memory_limit_mb=memory)


def _checker(arguments: Namespace) -> str | Checker:
    if arguments.tolerance is None:
        return str(arguments.checker or "trim")
    if arguments.checker not in (None, "number"):
        raise UsageError("--tolerance needs --checker number", "leave one of them out")
    try:
        return number(float(arguments.tolerance))
    except (ValueError, InvalidRequest):
        raise UsageError(f"--tolerance: {arguments.tolerance[:40]!r} is not a number of at least 0") from None


def _make_backend(name: str, arguments: Namespace) -> Any:
    policy = options.policy([], [], [], gpus=arguments.gpu)
    if name != "process":
        if policy is not None or arguments.image is not None:
            option = "--gpu" if policy is not None else "--image"
            raise UsageError(f"{option} needs the process backend", "leave it out")
        return get_backend(name)
    enforcer = None if arguments.enforcer == "none" else arguments.enforcer
    return get_backend(name, enforcer=enforcer, policy=policy, image=arguments.image, user=arguments.user)


def _status(verdicts: Sequence[Verdict]) -> int:
    """A case that could not be judged outweighs one that failed: they must not be mistaken for each other."""
    if any(verdict.status in NOT_JUDGED for verdict in verdicts):
        return OUR_FAILURE
    return OK if all(verdict.ok for verdict in verdicts) else NOT_ACCEPTED


def _print_table(verdicts: Sequence[tuple[Case, Verdict]], total: int) -> None:
    first = verdicts[0][1]
    if first.status == "build_error":
        if first.result is not None:
            write_bytes(b"", first.result.stdout_bytes + first.result.stderr_bytes)
        say_error(str(first.error))
        return
    names = [one_line(case.name or str(number)) for number, (case, _) in enumerate(verdicts, 1)]
    width = max(len("case"), *map(len, names))
    print(f"{'case':{width}}  {'verdict':13}  {'time':>9}  {'cpu':>9}  {'memory':>9}")
    for name, (_, verdict) in zip(names, verdicts, strict=True):
        cost = f"{verdict.time * 1000:6.0f} ms  {verdict.cpu_time * 1000:6.0f} ms  {verdict.memory_bytes >> 20:6} MB"
        print(f"{name:{width}}  {verdict.status:13}  {cost}")
    print(f"{sum(verdict.ok for _, verdict in verdicts)} of {total} accepted")
    for verdict in [verdict for _, verdict in verdicts if verdict.status in NOT_JUDGED][:1]:
        hint = "judge it again" if verdict.status == "host_error" else "fix the checker"
        say_error(f"a case could not be judged: {verdict.error}", hint)


def _to_plain(source: Source, version: str, verdicts: Sequence[tuple[Case, Verdict]], total: int) -> dict[str, Any]:
    failed = next((verdict for _, verdict in verdicts if not verdict.ok), None)
    return {
        "status": "accepted" if failed is None else failed.status,
        "language": source.language.name,
        "version": version,
        "file": os.path.basename(source.path or ""),
        "accepted": sum(verdict.ok for _, verdict in verdicts),
        "total": total,
        "cases": [{"name": case.name, **verdict_to_plain(verdict, error_to_plain)} for case, verdict in verdicts],
    }
