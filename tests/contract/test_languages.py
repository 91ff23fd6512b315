"""Every language of the registry: what its programs print and read, how they end, which limits they meet.

A new row joins by its programs in `tests/language_programs.py`; its escapes are in `tests/escape/test_languages.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.contract.conftest import BACKENDS, NO_POOL
from tests.helpers import require
from tests.language_programs import PROGRAMS, runnable

from warmcell import BuildFailed, ExecRequest, ExecutionTimeout, MemoryExceeded, Outcome, ProcessBackend, ProcessConfig
from warmcell.backends.many import run_many
from warmcell.languages.registry import why_missing
from warmcell.languages.table import ROWS

PROCESS = [row.name for row in ROWS if row.backend == "process"]
GREETING = "hello wörld 🦀\n"
Outcomes = dict[tuple[str, str], Outcome]
#: Each class would build Go's own library anew, for most of a minute; what differs between them the others show too.
BY_CLASS = [
    (name, language)
    for name in ("native", "bubblewrap", "landlock")
    for language in PROCESS
    if (name, language) not in {("bubblewrap", "go"), ("landlock", "go")}
]


@pytest.fixture(scope="module")
def of_class(request: pytest.FixtureRequest) -> Iterator[ProcessBackend]:
    with BACKENDS[request.param].make(**NO_POOL) as made:
        yield made


@pytest.fixture(scope="module")
def backend() -> Iterator[ProcessBackend]:
    with BACKENDS["native"].make(**NO_POOL) as made:
        yield made


def test_every_row_of_the_registry_has_programs_here() -> None:
    assert sorted(PROGRAMS) == sorted(PROCESS), "give the new language its row in tests/language_programs.py"


@pytest.mark.parametrize(("of_class", "language"), BY_CLASS, indirect=["of_class"])
def test_it_prints_reads_and_ends(of_class: ProcessBackend, language: str) -> None:
    programs = runnable(language)
    result = of_class.execute_blocking(ExecRequest(language, programs.greets, 120, "wörld 🦀\n"))
    assert (result.stdout, result.exit_code, result.signal) == (GREETING, programs.status, None), result.stderr


@pytest.mark.parametrize("language", PROCESS)
def test_a_mistake_is_a_result_that_says_where(backend: ProcessBackend, language: str) -> None:
    programs = runnable(language)
    result = backend.execute_blocking(ExecRequest(language, programs.mistake, 120))
    assert not result.ok and result.stdout == ""
    assert programs.complaint in result.stderr


@pytest.mark.parametrize("language", PROCESS)
def test_it_is_built_once_and_run_often(backend: ProcessBackend, language: str) -> None:
    programs = runnable(language)
    with backend.build_blocking(ExecRequest(language, programs.greets, 120)) as program:
        for name in ("wörld 🦀", "x"):
            result = program.run_blocking(f"{name}\n")
            assert (result.stdout, result.exit_code) == (f"hello {name}\n", programs.status), result.stderr


@pytest.mark.parametrize("language", [name for name in PROCESS if name != "sql"])
def test_a_mistake_is_found_when_it_is_built(backend: ProcessBackend, language: str) -> None:
    programs = runnable(language)
    with pytest.raises(BuildFailed) as caught:
        backend.build_blocking(ExecRequest(language, programs.mistake, 120))
    assert caught.value.fault == "guest"
    assert programs.complaint in caught.value.result.stderr + caught.value.result.stdout


@pytest.fixture(scope="module")
def outcomes(backend: ProcessBackend) -> Outcomes:
    """The outcome of every language and program, run all at once as a judge would."""
    names = [name for name in PROCESS if why_missing(name, ProcessConfig()) is None]
    return asyncio.run(_all_outcomes(backend, names))


async def _all_outcomes(backend: ProcessBackend, names: list[str]) -> Outcomes:
    requests = [ExecRequest(name, PROGRAMS[name].obeys, 60, memory_limit_mb=128) for name in names]
    programs = dict(zip(names, await asyncio.gather(*map(backend.build, requests)), strict=True))
    asked = [(name, word) for name in names for word in ("crash", "flood", "grow", "spin")]

    async def execute(request: ExecRequest) -> object:
        timeout = 0.4 if request.args == ("spin",) else 60.0
        return await programs[str(request.language)].run(request.args[0], request.args, timeout)

    runs = [ExecRequest(name, "x", 60, args=[word]) for name, word in asked]
    return {asked[outcome.index]: outcome async for outcome in run_many(execute, runs)}  # type: ignore[arg-type]


@pytest.mark.xdist_group("outcomes of languages")  # one test process builds and runs them all
@pytest.mark.parametrize("language", PROCESS)
def test_it_crashes_and_meets_its_limits(outcomes: Outcomes, language: str) -> None:
    require((language, "crash") in outcomes, f"{language} is not installed")
    crashed, flooded, grown, spun = (outcomes[language, word] for word in ("crash", "flood", "grow", "spin"))
    assert crashed.result is not None and not crashed.result.ok and crashed.result.stdout == "", crashed
    assert crashed.result.signal or crashed.result.stderr
    assert flooded.result is not None and flooded.result.ok and flooded.result.stdout_truncated
    assert len(flooded.result.stdout_bytes) == 1 << 20
    # Some have a limit of their own that they meet first, and say so.
    assert isinstance(grown.error, MemoryExceeded) or (grown.result is not None and not grown.result.ok), grown
    assert isinstance(spun.error, ExecutionTimeout) and spun.error.fault == "guest"
