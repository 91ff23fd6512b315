"""Request models and query parameters of `/v1`: they validate requests and are the schemas of `/openapi.json`."""

from __future__ import annotations

import binascii
import math
import re
from base64 import b64decode
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, WrapValidator
from pydantic.config import JsonDict
from starlette.requests import Request

from warmcell.core.errors import InvalidRequest
from warmcell.core.paths import display_path
from warmcell.core.request_checks import MAX_FILES
from warmcell.core.types import ENOUGH_OPEN_FILES, MAX_TIMEOUT, ExecRequest, Limits
from warmcell.images.references import REFERENCE_PATTERN
from warmcell.interfaces.serve.responses import parse_whole_number
from warmcell.judging.verdicts import Case


def _whole(value: object) -> object:
    """Convert `5.0` to 5, since JSON does not distinguish them. `"5"` and `true` are unchanged, and rejected later."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _fullmatch(pattern: str, kind: str) -> AfterValidator:
    def check(path: str) -> str:
        if re.fullmatch(pattern, path) is None:
            raise ValueError(f"{display_path(path)!r} is not {kind} the work directory")
        return path

    return AfterValidator(check)


_NAME = r"(?!\.{1,2}(?:/|$))[^\x00-\x1f\x7f\\/]{1,255}"
#: The path of a file or directory, relative or below /work; `PLACE` also allows the work directory itself.
BELOW = rf"^(?!~/|[A-Za-z]:)(?:/work/)?{_NAME}(?:/{_NAME})*$"
PLACE = rf"^(?:\.|/work|(?!~/|[A-Za-z]:)(?:/work/)?{_NAME}(?:/{_NAME})*)$"
#: `BELOW` and `PLACE` of URLs: names of files may contain control characters except NUL.
BELOW_IN_URL, PLACE_IN_URL = (pattern.replace(r"\x00-\x1f\x7f", r"\x00") for pattern in (BELOW, PLACE))
#: A relative path below the work directory: no `..`, no control characters.
RELATIVE = r"^(?!/|~|[A-Za-z]:)(?!(?:[^/]*/)*\.{0,2}(?:/|$))[^\x00-\x1f\x7f\\]+$"
#: No NUL, and at least one visible character.
_CODE = r"^[^\x00]*[!-~][^\x00]*$"
Code = Annotated[str, Field(pattern=_CODE)]
Plain = Annotated[str, Field(pattern=r"^[^\x00]*$")]
VariableName = Annotated[str, Field(pattern=r"^[^=\x00]+$")]
Variables = Annotated[
    dict[VariableName, Plain], Field(json_schema_extra={"propertyNames": {"pattern": r"^[^=\x00]+$"}})
]
Path = Annotated[
    str, Field(max_length=255, json_schema_extra={"pattern": RELATIVE}), _fullmatch(RELATIVE, "a plain path below")
]
Below = Annotated[
    str, Field(max_length=4000, json_schema_extra={"pattern": BELOW}), _fullmatch(BELOW, "a plain path in")
]
#: A working directory; only the sandbox knows whether it exists.
Directory = Annotated[
    str, Field(max_length=4000, json_schema_extra={"pattern": PLACE}), _fullmatch(PLACE, "a directory in")
]
#: Must be last, so that the bounds before it stay in the schema.
WHOLE = BeforeValidator(_whole)
Seconds = Annotated[float, Field(gt=0, le=MAX_TIMEOUT)]
PortNumber = Annotated[int, Field(ge=1, le=65_535), WHOLE]
Identity = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Word = Annotated[str, Field(min_length=1, max_length=200)]
Metadata = Annotated[dict[str, str], Field(max_length=64)]
Lifetime = Annotated[float, Field(ge=1, le=31_622_400)]


class Strict(BaseModel):
    """No type coercion and no unknown fields: a field that has no effect is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Bytes(Strict):
    """Bytes that are not text."""

    base64: Annotated[str, Field(pattern=r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")]


Content = str | Bytes


def _text_or_bytes(value: Any, check_text: Any) -> str | bytes:
    """Validate text or bytes. A union would not report errors about the text with the field `code`."""
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        return decode_base64("code", value["base64"])
    text: str = check_text(value)
    return text


#: Source text, or the bytes of a WebAssembly module. Typed as text.
CodeOrBytes = Annotated[
    Code,
    WrapValidator(_text_or_bytes),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _CODE}, Bytes.model_json_schema()]}),
]


_FILE_NAMES = {"pattern": RELATIVE, "minLength": 1, "maxLength": 255}
Files = Annotated[dict[Path, Content], Field(max_length=MAX_FILES, json_schema_extra={"propertyNames": _FILE_NAMES})]


class LimitsBody(Strict):
    memory_mb: Annotated[int, Field(ge=1, le=1 << 20), WHOLE] | None = None
    cpu_seconds: Annotated[float, Field(gt=0, le=MAX_TIMEOUT * 1024)] | None = None
    processes: Annotated[int, Field(ge=1, le=1 << 16), WHOLE] | None = None
    open_files: Annotated[int, Field(ge=ENOUGH_OPEN_FILES, le=1 << 20), WHOLE] | None = None
    disk_mb: Annotated[int, Field(ge=1, le=1 << 24), WHOLE] | None = None
    output_bytes: Annotated[int, Field(ge=1, le=1 << 30), WHOLE] | None = None
    cpus: Annotated[float, Field(gt=0, le=1024)] | None = None
    gpu_memory_mb: Annotated[int, Field(ge=1, le=1 << 24), WHOLE] | None = None

    def limits(self) -> Limits:
        return Limits(**self.model_dump())


#: Devices by number, or all that the policy allows.
Gpus = Literal["all"] | Annotated[list[Annotated[int, Field(ge=0, le=1 << 16), WHOLE]], Field(max_length=64)]


#: A name in the server's image store, and a user of that image.
ImageName = Annotated[str, Field(max_length=300, json_schema_extra={"pattern": REFERENCE_PATTERN})]
UserName = Annotated[str, Field(max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$")]
#: For the schemas of requests with both fields: a user is a user of an image.
_USER_NEEDS_IMAGE: JsonDict = {
    "anyOf": [
        {"properties": {"user": {"type": "null"}}},
        {"properties": {"image": {"type": "string"}}, "required": ["image"]},
    ]
}


class RunBody(Strict):
    """An `ExecRequest`, the `gpus` that it needs, and the `image` (with its `user`) that it runs in. Bytes are
    `{"base64": "..."}` wherever text is allowed."""

    model_config = ConfigDict(json_schema_extra=_USER_NEEDS_IMAGE)

    language: str
    code: CodeOrBytes
    timeout: Seconds
    stdin: Content | None = None
    memory_limit_mb: Annotated[int, Field(ge=1, le=1 << 20), WHOLE] | None = None
    env: Variables = {}
    limits: LimitsBody | None = None
    args: Annotated[list[Plain], Field(max_length=1000)] = []
    files: Files = {}
    fetch_files: Annotated[list[Path], Field(max_length=MAX_FILES)] = []
    gpus: Gpus | None = None
    image: ImageName | None = None
    user: UserName | None = None

    def request(self) -> ExecRequest:
        """`ExecRequest` validates the fields again."""
        return ExecRequest(
            self.language,
            self.code,
            self.timeout,
            stdin=None if self.stdin is None else to_content("stdin", self.stdin),
            memory_limit_mb=self.memory_limit_mb,
            env=self.env,
            limits=None if self.limits is None else self.limits.limits(),
            args=self.args,
            files={path: to_content(f"files[{path!r}]", held) for path, held in self.files.items()},
            fetch_files=self.fetch_files,
        )


class CaseBody(Strict):
    stdin: Content = ""
    expected: Content = ""
    timeout: Seconds | None = None
    memory_mb: Annotated[int, Field(ge=1, le=1 << 20), WHOLE] | None = None
    name: str = ""

    def case(self) -> Case:
        texts = to_content("stdin", self.stdin), to_content("expected", self.expected)
        return Case(*texts, self.timeout, self.memory_mb, self.name or None)


class JudgeBody(RunBody):
    """A program and its cases, at most a thousand."""

    cases: Annotated[list[CaseBody], Field(min_length=1, max_length=1000)]
    checker: Literal["exact", "trim", "tokens", "number"] = "trim"
    clock: Literal["wall", "cpu"] = "cpu"
    stop_early: bool = False


class CreateBody(Strict):
    """`lifetime`: seconds until the sandbox is removed; `timeout`: for runs that set none, by default 30 or the
    server's maximum. `live`: runs share one cage with the processes; `forkable`: Python sessions can be forked.
    `image`: a name in the server's image store, whose files are the root; `user`: a user of that image."""

    model_config = ConfigDict(json_schema_extra=_USER_NEEDS_IMAGE)

    lifetime: Lifetime = 3600
    timeout: Seconds | None = None
    env: Variables = {}
    limits: LimitsBody | None = None
    live: bool = False
    forkable: bool = False
    gpus: Gpus | None = None
    image: ImageName | None = None
    user: UserName | None = None
    metadata: Metadata = {}


class SignInBody(Strict):
    """The code from the fragment of the page's URL."""

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
    code: CodeOrBytes
    language: str = "python"
    stdin: Content | None = None
    timeout: Seconds | None = None


def decode_base64(field: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("is not base64", field=field) from None


def to_content(field: str, held: Content) -> str | bytes:
    return held if isinstance(held, str) else decode_base64(field, held.base64)


class SessionBody(Strict):
    """A stateful interpreter: `python`, `javascript`, `typescript` or `command` (bash)."""

    language: str = "python"
    cwd: Directory | None = None
    env: Variables = Field({})


class CellBody(Strict):
    """`answers_input`: the response is a stream with `input` events; the client posts each answer to `.../input`."""

    code: Code
    timeout: Seconds | None = None
    answers_input: bool = False


class InputBody(Strict):
    """`text`: null if there is no answer; `input()` then raises `EOFError`."""

    text: str | None


class BranchBody(Strict):
    """`reseed`: the branch gets new random seeds."""

    reseed: bool = True
    lifetime: Lifetime = 3600
    metadata: Metadata = Field({})


class ForkBody(Strict):
    """A fork of the present files, or of a snapshot."""

    snapshot: Identity | None = None
    lifetime: Lifetime = 3600
    metadata: Metadata = Field({})


class RestoreBody(Strict):
    snapshot: Identity


class PortBody(Strict):
    port: PortNumber


class DirectoryBody(Strict):
    """`parents`: create parent directories, and accept an existing directory."""

    path: Below
    parents: bool = False


class PatchBody(Strict):
    """A unified diff, or the format of coding agents (`*** Begin Patch`)."""

    patch: Annotated[str, Field(min_length=1)]
    path: Directory = "."


class DestinationBody(Strict):
    """`domain`: a name, `*.name`, `*` or an IP address. Without `ports` and `ports_from`, on every port."""

    domain: Annotated[str, Field(min_length=1, max_length=300)]
    ports: Annotated[list[PortNumber], Field(max_length=1000)] = Field([])
    ports_from: PortNumber | None = None
    methods: Annotated[list[Word], Field(max_length=100)] | None = None
    path_prefixes: Annotated[list[Word], Field(max_length=100)] | None = None


class NetworkBody(Strict):
    """What the sandbox may reach from now on. `allow: null`: all that it was made with; `[]`: nothing."""

    allow: Annotated[list[DestinationBody], Field(max_length=1000)] | None
    deny: Annotated[list[DestinationBody], Field(max_length=1000)] = Field([])
    deny_private_ips: bool = False


class PackagesBody(Strict):
    """Names with versions in the syntax of pip or npm (`manager`); no URLs and no options."""

    packages: Annotated[list[Word], Field(min_length=1, max_length=100)]
    manager: Literal["pip", "npm"] = "pip"


# ---- query parameters ----


def query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter in `/openapi.json`."""
    return {"name": name, "in": "query", "required": False, "schema": schema}


#: A path in the work directory, or the work directory itself.
PATH = query("path", {"type": "string", "pattern": PLACE_IN_URL, "maxLength": 4000})


def number_in_query(request: Request, name: str, default: float, maximum: float = 1e12) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 0 < value <= maximum):
        raise InvalidRequest(f"must be a number above 0 and at most {maximum:g}", field=name)
    return value


def whole_in_query(request: Request, name: str, default: int, maximum: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    number = parse_whole_number(text)
    if number is None or not 1 <= number <= maximum:
        raise InvalidRequest(f"must be a whole number from 1 to {maximum}", field=name)
    return number


def flag_in_query(request: Request, name: str, default: bool = False) -> bool:
    text = request.query_params.get(name)
    if text not in (None, "true", "false"):
        raise InvalidRequest("must be true or false", field=name)
    return default if text is None else text == "true"


def path_in_query(request: Request) -> str:
    return request.query_params.get("path", ".")
