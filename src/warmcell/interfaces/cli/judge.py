"""`warmcell judge`: one program, many cases, a table of verdicts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import InvalidRequest
from warmcell.core.lines import one_line
from warmcell.core.types import ExecRequest
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import NOT_ACCEPTED, OK, OUR_FAILURE, UsageError
from warmcell.interfaces.cli.render import error_to_plain, print_json
from warmcell.interfaces.cli.source import Source, choose, read_code
from warmcell.interfaces.cli.voice import Bar, Progress, say_error, write_bytes
from warmcell.judging.case_files import read_cases
from warmcell.judging.checkers import Checker, number
from warmcell.judging.judge import judge as judge_program
from warmcell.judging.verdicts import Case, Verdict

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


def judge(arguments: Namespace) -> int:
    """Checks everything, then judges; 0 where every case was accepted."""
    source = choose(arguments.language or arguments.file, arguments.file if arguments.language else None, None)
    jobs = options.whole_number("--jobs", arguments.jobs, 1024)
    try:
        request = _request(arguments, source)
        cases, checker = read_cases(arguments.cases), _checker(arguments)
    except InvalidRequest as error:
        raise UsageError(error.message.removeprefix("cases: "), error.hint) from None
    backend = _backend(source.language.backend, arguments.enforcer)
    try:
        judged = _judged(request, cases, backend, checker, jobs, arguments)
        version = backend.capabilities().versions.get(source.language.name, "") if arguments.json else ""
    finally:
        backend.close()
    verdicts = list(zip(cases, judged, strict=False))  # shorter where it stopped early
    if arguments.json:
        print_json(_plain(source, version, verdicts, len(cases)))
    else:
        _print_table(verdicts, len(cases))
    return _status(judged)


def _judged(
    request: ExecRequest, cases: list[Case], backend: Any, checker: str | Checker, jobs: int | None, chosen: Namespace
) -> list[Verdict]:
    # The line goes with the build; from the first verdict on the bar says how far it is.
    with Progress(f"building {request.language}") as building, Bar(len(cases), "judged") as bar:

        def advance(index: int, verdict: Verdict) -> None:
            building.stop()
            bar.advance()

        return judge_program(
            request,
            cases,
            backend=backend,
            checker=checker,
            clock=chosen.clock,
            concurrency=jobs,
            stop_early=chosen.stop_early,
            on_verdict=advance,
        )


def _request(arguments: Namespace, source: Source) -> ExecRequest:
    timeout = options.seconds("--timeout", arguments.timeout)
    memory = options.whole_number("--memory", arguments.memory, 1 << 20)
    return ExecRequest(source.language.name, read_code(source), timeout, memory_limit_mb=memory)


def _checker(arguments: Namespace) -> str | Checker:
    if arguments.tolerance is None:
        return str(arguments.checker or "trim")
    if arguments.checker not in (None, "number"):
        raise UsageError("--tolerance is for --checker number", "leave one of them out")
    try:
        return number(float(arguments.tolerance))
    except (ValueError, InvalidRequest):
        raise UsageError(f"--tolerance: {arguments.tolerance[:40]!r} is not a number of at least 0") from None


def _backend(name: str, enforcer: str) -> Any:
    if name != "process":
        from warmcell.backends.registry import get_backend

        return get_backend(name)
    from warmcell.backends.process.backend import ProcessBackend

    return ProcessBackend(enforcer=None if enforcer == "none" else enforcer)


def _status(verdicts: Sequence[Verdict]) -> int:
    """What could not be judged outweighs what failed: nobody is to take the one for the other."""
    if any(verdict.status == "host_error" for verdict in verdicts):
        return OUR_FAILURE
    return OK if all(verdict.ok for verdict in verdicts) else NOT_ACCEPTED


def _print_table(verdicts: Sequence[tuple[Case, Verdict]], total: int) -> None:
    first = verdicts[0][1]
    if first.status == "build_error":
        if first.result is not None:
            write_bytes(b"", first.result.stdout_bytes + first.result.stderr_bytes)
        say_error(str(first.error))
        return
    names = [one_line(case.name) for case, _ in verdicts]
    width = max(len("case"), *map(len, names))
    print(f"{'case':{width}}  {'verdict':13}  {'time':>9}  {'cpu':>9}  {'memory':>9}")
    for name, (_, verdict) in zip(names, verdicts, strict=True):
        cost = f"{verdict.time * 1000:6.0f} ms  {verdict.cpu_time * 1000:6.0f} ms  {verdict.memory_bytes >> 20:6} MB"
        print(f"{name:{width}}  {verdict.status:13}  {cost}")
    print(f"{sum(verdict.ok for _, verdict in verdicts)} of {total} accepted")
    for verdict in [verdict for _, verdict in verdicts if verdict.status == "host_error"][:1]:
        say_error(f"a case could not be judged: {verdict.error}", "judge it again")


def _plain(source: Source, version: str, verdicts: Sequence[tuple[Case, Verdict]], total: int) -> dict[str, Any]:
    failed = next((verdict for _, verdict in verdicts if not verdict.ok), None)
    return {
        "status": "accepted" if failed is None else failed.status,
        "language": source.language.name,
        "version": version,
        "file": os.path.basename(source.path or ""),
        "accepted": sum(verdict.ok for _, verdict in verdicts),
        "total": total,
        "cases": [_plain_case(case, verdict) for case, verdict in verdicts],
    }


def _plain_case(case: Case, verdict: Verdict) -> dict[str, Any]:
    return {
        "name": case.name,
        "status": verdict.status,
        "time": verdict.time,
        "cpu_time": verdict.cpu_time,
        "memory_bytes": verdict.memory_bytes,
        "result": None if verdict.result is None else verdict.result.to_dict(),
        "error": None if verdict.error is None else error_to_plain(verdict.error),
    }
