"""What clients send to `/v1`, as pydantic models: they check, and they are the schemas of `/openapi.json`."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from warmcell.core.errors import InvalidRequest
from warmcell.core.paths import shown
from warmcell.core.request_files import MOST_FILES
from warmcell.core.types import ENOUGH_OPEN_FILES, MAX_TIMEOUT, ExecRequest, Limits
from warmcell.judging.verdicts import Case


def _whole(value: object) -> object:
    """`5.0` is a whole number to JSON; `"5"` and `true` are not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _relative(path: str) -> str:
    if re.fullmatch(RELATIVE, path) is None:
        raise ValueError(f"{shown(path)!r} is no plain path below the work directory")
    return path


def _below(path: str) -> str:
    if re.fullmatch(BELOW, path) is None:
        raise ValueError(f"{shown(path)!r} is no plain path of the work directory")
    return path


def _place(path: str) -> str:
    if re.fullmatch(PLACE, path) is None:
        raise ValueError(f"{shown(path)!r} is no directory of the work directory")
    return path


_NAME = r"(?!\.{1,2}(?:/|$))[^\x00-\x1f\x7f\\/]{1,255}"
#: A file or directory, as the guest names it too; and with the work directory itself.
BELOW = rf"^(?!~/|[A-Za-z]:)(?:/work/)?{_NAME}(?:/{_NAME})*$"
PLACE = rf"^(?:\.|/work|(?!~/|[A-Za-z]:)(?:/work/)?{_NAME}(?:/{_NAME})*)$"
#: A name below the work directory: no step out of it, no control characters.
RELATIVE = r"^(?!/|~|[A-Za-z]:)(?!(?:[^/]*/)*\.{0,2}(?:/|$))[^\x00-\x1f\x7f\\]+$"
#: No NUL, and something that can be seen: what the kernel and the interpreters take.
Code = Annotated[str, Field(pattern=r"^[^\x00]*[!-~][^\x00]*$")]
Plain = Annotated[str, Field(pattern=r"^[^\x00]*$")]
VariableName = Annotated[str, Field(pattern=r"^[^=\x00]+$")]
Variables = Annotated[
    dict[VariableName, Plain], Field(json_schema_extra={"propertyNames": {"pattern": r"^[^=\x00]+$"}})
]
Path = Annotated[str, Field(max_length=255, json_schema_extra={"pattern": RELATIVE}), AfterValidator(_relative)]
Below = Annotated[str, Field(max_length=4000, json_schema_extra={"pattern": BELOW}), AfterValidator(_below)]
#: Where to begin. Which directories there are only the sandbox can say.
Directory = Annotated[str, Field(max_length=4000, json_schema_extra={"pattern": PLACE}), AfterValidator(_place)]
#: Last, so that the bounds before it stay in the schema.
WHOLE = BeforeValidator(_whole)
Seconds = Annotated[float, Field(gt=0, le=MAX_TIMEOUT)]


class Strict(BaseModel):
    """No guessing of types, no unknown fields: what had no effect must not look as if it had."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Bytes(Strict):
    """Bytes that are no text."""

    base64: Annotated[str, Field(pattern=r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")]


Content = str | Bytes


_FILE_NAMES = {"pattern": RELATIVE, "minLength": 1, "maxLength": 255}
Files = Annotated[dict[Path, Content], Field(max_length=MOST_FILES, json_schema_extra={"propertyNames": _FILE_NAMES})]


class LimitsBody(Strict):
    memory_mb: Annotated[int, Field(ge=1, le=1 << 20), WHOLE] | None = None
    cpu_seconds: Annotated[float, Field(gt=0, le=MAX_TIMEOUT * 1024)] | None = None
    processes: Annotated[int, Field(ge=1, le=1 << 16), WHOLE] | None = None
    open_files: Annotated[int, Field(ge=ENOUGH_OPEN_FILES, le=1 << 20), WHOLE] | None = None
    disk_mb: Annotated[int, Field(ge=1, le=1 << 24), WHOLE] | None = None
    output_bytes: Annotated[int, Field(ge=1, le=1 << 30), WHOLE] | None = None

    def limits(self) -> Limits:
        return Limits(**self.model_dump())


class RunBody(Strict):
    """An `ExecRequest`. Bytes are `{"base64": "..."}` wherever text may stand."""

    language: str
    code: Code
    timeout: Seconds
    stdin: Content | None = None
    memory_limit_mb: Annotated[int, Field(ge=1, le=1 << 20), WHOLE] | None = None
    env: Variables = {}
    limits: LimitsBody | None = None
    args: Annotated[list[Plain], Field(max_length=1000)] = []
    files: Files = {}
    fetch_files: Annotated[list[Path], Field(max_length=MOST_FILES)] = []

    def request(self) -> ExecRequest:
        """Checked once more, by the ones who use it."""
        return ExecRequest(
            self.language,
            self.code,
            self.timeout,
            stdin=None if self.stdin is None else content("stdin", self.stdin),
            memory_limit_mb=self.memory_limit_mb,
            env=self.env,
            limits=None if self.limits is None else self.limits.limits(),
            args=self.args,
            files={path: content(f"files[{path!r}]", held) for path, held in self.files.items()},
            fetch_files=self.fetch_files,
        )


class CaseBody(Strict):
    stdin: Content = ""
    expected: Content = ""
    timeout: Seconds | None = None
    name: str = ""

    def case(self) -> Case:
        return Case(content("stdin", self.stdin), content("expected", self.expected), self.timeout, self.name)


class JudgeBody(RunBody):
    """A program and its cases, at most a thousand."""

    cases: Annotated[list[CaseBody], Field(min_length=1, max_length=1000)]
    checker: Literal["exact", "trim", "tokens", "number"] = "trim"
    clock: Literal["wall", "cpu"] = "wall"
    stop_early: bool = False


class CreateBody(Strict):
    """`lifetime`: seconds until it goes away by itself; `timeout`: of each run that says none, 30 or the longest that
    this server allows. With `live` its runs share one cage with its processes; with `forkable` its Python sessions can
    be forked."""

    lifetime: Annotated[float, Field(ge=1, le=31_622_400)] = 3600
    timeout: Seconds | None = None
    env: Variables = {}
    limits: LimitsBody | None = None
    live: bool = False
    forkable: bool = False
    metadata: Annotated[dict[str, str], Field(max_length=64)] = {}


class SignInBody(Strict):
    """What the address of the page had behind its `#`."""

    code: Plain


class ExecBody(Strict):
    command: Code
    args: Annotated[list[Plain], Field(max_length=1000)] = []
    cwd: Directory | None = None
    stdin: Content | None = None
    timeout: Seconds | None = None


class ScriptBody(Strict):
    script: Code
    cwd: Directory | None = None
    stdin: Content | None = None
    timeout: Seconds | None = None


class CodeBody(Strict):
    code: Code
    language: str = "python"
    stdin: Content | None = None
    timeout: Seconds | None = None


def decoded(field: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("is not base64", field=field) from None


def content(field: str, held: Content) -> str | bytes:
    return held if isinstance(held, str) else decoded(field, held.base64)
