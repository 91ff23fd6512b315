"""What clients send to `/v1`, as pydantic models: they check, and they are the schemas of `/openapi.json`."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from warmcell.core.errors import InvalidRequest
from warmcell.core.types import MAX_TIMEOUT, ExecRequest, Limits
from warmcell.judging.verdicts import Case

#: No NUL, and something to run: what the kernel and the interpreters take.
Code = Annotated[str, Field(pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")]
Plain = Annotated[str, Field(pattern=r"^[^\x00]*$")]
VariableName = Annotated[str, Field(pattern=r"^[^=\x00]+$")]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]
Seconds = Annotated[float, Field(gt=0, le=MAX_TIMEOUT)]
Count = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """No guessing of types, no unknown fields: what had no effect must not look as if it had."""

    model_config = ConfigDict(extra="forbid", strict=True)


class LimitsBody(Strict):
    memory_mb: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    cpu_seconds: Annotated[float, Field(gt=0, le=MAX_TIMEOUT * 1024)] | None = None
    processes: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    open_files: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    disk_mb: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    output_bytes: Annotated[int, Field(ge=1, le=1 << 30)] | None = None

    def limits(self) -> Limits:
        return Limits(**self.model_dump())


class RunBody(Strict):
    """An `ExecRequest`. Bytes that are no text go by the `_base64` twin of a field."""

    language: str
    code: Code | None = None
    code_base64: Base64 | None = None
    timeout: Seconds
    stdin: str | None = None
    stdin_base64: Base64 | None = None
    memory_limit_mb: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    env: dict[VariableName, Plain] = {}
    limits: LimitsBody | None = None
    args: list[Plain] = []
    files: dict[str, str] = {}
    files_base64: dict[str, Base64] = {}
    fetch_files: list[str] = []

    def request(self, **changes: Any) -> ExecRequest:
        """Checked once more, by the ones who use it."""
        twice = set(self.files) & set(self.files_base64)
        if twice:
            raise InvalidRequest("name the same path twice", field="files")
        encoded = {path: decoded(f"files_base64[{path!r}]", text) for path, text in self.files_base64.items()}
        fields: dict[str, Any] = {
            "language": self.language,
            "code": _either("code", self.code, self.code_base64),
            "timeout": self.timeout,
            "stdin": _either("stdin", self.stdin, self.stdin_base64),
            "memory_limit_mb": self.memory_limit_mb,
            "env": self.env,
            "limits": None if self.limits is None else self.limits.limits(),
            "args": self.args,
            "files": {**self.files, **encoded},
            "fetch_files": self.fetch_files,
        }
        return ExecRequest(**fields | changes)


class CaseBody(Strict):
    stdin: str = ""
    expected: str = ""
    timeout: Seconds | None = None
    name: str = ""

    def case(self) -> Case:
        return Case(self.stdin, self.expected, self.timeout, self.name)


class JudgeBody(RunBody):
    """A program and its cases, at most a thousand."""

    cases: Annotated[list[CaseBody], Field(min_length=1, max_length=1000)]
    checker: Literal["exact", "trim", "tokens", "number"] = "trim"
    clock: Literal["wall", "cpu"] = "wall"
    stop_early: bool = False


def decoded(field: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("is not base64", field=field) from None


def _either(name: str, text: str | None, encoded: str | None) -> str | bytes | None:
    if text is not None and encoded is not None:
        raise InvalidRequest(f"is given twice, by {name!r} and by '{name}_base64'", field=name)
    return text if encoded is None else decoded(f"{name}_base64", encoded)
