"""Task and Sample: what is evaluated, and the run that a sample becomes. Pure module."""

from __future__ import annotations

from collections.abc import Mapping

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass, field, replace
from warmcell.core.request_checks import check_positive_int
from warmcell.core.types import ExecRequest, Limits, check_timeout
from warmcell.judging.checkers import Checker, checker_for
from warmcell.judging.verdicts import Case

DEFAULT_TIMEOUT, DEFAULT_MEMORY_MB = 10.0, 1024
#: Runs after the tests of a Python task that are in the same process as the sample: it prints what stdin holds. A
#: sample that exits before the tests have passed does not get here.
PYTHON_END = "\n\nimport sys as _sys\nprint('\\n' + _sys.__stdin__.readline(), end='')\n"


@dataclass(frozen=True, slots=True)
class Sample:
    """What a model wrote for a task: a whole program, or the continuation of the task's prompt."""

    text: str
    is_continuation: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """A problem and its tests. The program is `before`, the sample, `after`; each case is one run of it.

    With `sample_file` the program is `before` alone and finds the sample in that file. `proves_end`: the case passes
    if the last line of output is a random word that the program got on stdin, see `PYTHON_END`.
    """

    id: str
    cases: tuple[Case, ...]
    language: str = "python"
    prompt: str = ""
    before: str = ""
    after: str = ""
    files: Mapping[str, bytes | str] = field(default_factory=dict)
    sample_file: str | None = None
    checker: str | Checker = "trim"
    timeout: float = DEFAULT_TIMEOUT
    memory_mb: int = DEFAULT_MEMORY_MB
    image: str | None = None
    #: None: as `judge` chooses it, from the expected output.
    output_bytes: int | None = None
    proves_end: bool = False

    def __post_init__(self) -> None:
        if not self.id:
            raise InvalidRequest("is empty", field="id")
        if not self.cases:
            raise InvalidRequest("is empty", field="cases", hint="a task needs at least one test")
        checker_for(self.checker)
        check_timeout(self.timeout)
        check_positive_int("memory_mb", self.memory_mb, 1 << 20)

    def make_request(self, sample: Sample) -> ExecRequest:
        """Raises `InvalidRequest` with the field `code` or `files` if the sample cannot be a program."""
        code, files = self.before, dict(self.files)
        if self.sample_file is not None:
            files[self.sample_file] = sample.text
        else:
            prompt = self.prompt if sample.is_continuation else ""
            code = f"{self.before}{prompt}{sample.text}{self.after}"
        limits = Limits(output_bytes=self.output_bytes)
        return ExecRequest(
            self.language, code, self.timeout, memory_limit_mb=self.memory_mb, files=files, limits=limits
        )

    def make_cases(self, token: str) -> list[Case]:
        """The cases of one evaluation of a sample; `token` is a new random word."""
        if not self.proves_end:
            return list(self.cases)
        return [replace(case, stdin=f"{token}\n", expected=token) for case in self.cases]
