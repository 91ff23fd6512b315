"""Requests, results and limits. Everything is checked once, here, when it is constructed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    T = TypeVar("T")
else:  # for who asks what the annotations stand for: `typing` takes as long to load as all the rest of a room
    Any = T = object

MIB = 1024 * 1024
MAX_CODE_BYTES = 8 * MIB
MAX_TIMEOUT = 86_400.0
DEFAULT_OUTPUT_BYTES = MIB
#: With so many every interpreter can start; with fewer only some.
ENOUGH_OPEN_FILES = 32


class Language(StrEnum):
    """What a request's code is written in. These have names here; every other language is named by plain text."""

    RUST = "rust"
    PYTHON = "python"
    JAVASCRIPT = "javascript"
    TYPESCRIPT = "typescript"
    WASM = "wasm"
    COMMAND = "command"


_LANGUAGES = {str(member): member for member in Language}
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789+#._-")


def _positive_int(name: str, value: object, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"must be a whole number, not {type(value).__name__}", field=name)
    if not 1 <= value <= largest:
        # The number itself is not shown: one of thousands of digits is an error of its own to print.
        raise InvalidRequest(f"must be between 1 and {largest}", field=name)


def _positive_number(name: str, value: object, largest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):  # `int | float` would be made at every call
        raise InvalidRequest(f"must be a number of seconds, not {type(value).__name__}", field=name)
    if not 0 < value <= largest:  # false for NaN as well
        raise InvalidRequest(f"must be more than 0 and at most {largest:g}", field=name)
    return float(value)


def check_timeout(value: object, name: str = "timeout") -> float:
    """A timeout in seconds, or `InvalidRequest`. There is no way to ask for "for ever"."""
    return _positive_number(name, value, MAX_TIMEOUT)


def check_text(name: str, value: object) -> str:
    """Text that can be passed to a process as it is: no NUL, no lone surrogates."""
    if not isinstance(value, str):
        raise InvalidRequest(f"must be text, not {type(value).__name__}", field=name)
    if "\0" in value:
        raise InvalidRequest("must not contain NUL", field=name)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("must be valid Unicode (it holds a lone surrogate)", field=name) from None
    return value


def is_plain(value: object) -> bool:
    """Text of which `check_text` has nothing to say, as nearly all is: told at once."""
    return type(value) is str and value.isascii() and "\0" not in value


def check_env(env: object, name: str = "env") -> Mapping[str, str]:
    """An environment as a read-only mapping, or `InvalidRequest` that names the key."""
    if not isinstance(env, (dict, Mapping)):  # a dict is told at once
        raise InvalidRequest(f"must be a mapping of text to text, not {type(env).__name__}", field=name)
    for key, value in env.items():
        if not is_plain(key):
            check_text(f"{name} key", key)
        if not key or "=" in key:
            raise InvalidRequest(f"bad variable name {key!r}", field=f"{name} key")
        if not is_plain(value):
            check_text(f"{name}[{key!r}]", value)
    return FrozenMapping(env)


class FrozenMapping(dict[str, T]):
    """A dict that says no to changes: it can be pickled and copied, which a mapping proxy cannot."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("what a request holds cannot be changed")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[object, ...]:
        return (FrozenMapping, (dict(self),))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


@dataclass(frozen=True, slots=True)
class Limits:
    """What somebody says about what a run may use, all its processes together. `None`: not said."""

    memory_mb: int | None = None
    cpu_seconds: float | None = None
    processes: int | None = None
    open_files: int | None = None
    disk_mb: int | None = None
    output_bytes: int | None = None
    cpus: float | None = None

    def __post_init__(self) -> None:
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if value is not None:
                check = _positive_number if isinstance(largest, float) else _positive_int
                check(name, value, largest)

    def capped_by(self, ceiling: Limits) -> Limits:
        """The smaller of each pair, or the one that was said: a request can tighten a policy, never widen it."""

        def smaller(name: str) -> Any:
            ours, theirs = getattr(self, name), getattr(ceiling, name)
            return theirs if ours is None else ours if theirs is None else min(ours, theirs)

        return Limits(**{name: smaller(name) for name in self.__slots__})


_LARGEST: dict[str, Any] = {
    "memory_mb": 1 << 20,
    "cpu_seconds": MAX_TIMEOUT * 1024,
    "processes": 1 << 16,
    "open_files": 1 << 20,
    "disk_mb": 1 << 24,
    "output_bytes": 1 << 30,
    "cpus": 1024.0,
}


@dataclass(frozen=True, slots=True)
class EffectiveLimits:
    """What holds for a run, nothing left unsaid; these are the defaults. `None` for cpu: only the timeout bounds it."""

    memory_mb: int = 512
    cpu_seconds: float | None = None
    processes: int = 128
    open_files: int = 1024
    disk_mb: int = 256
    output_bytes: int = DEFAULT_OUTPUT_BYTES
    cpus: float | None = None

    def stated(self) -> Limits:
        """The same as somebody would say it, for a policy that is handed on."""
        return Limits(**{name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """Code to run and what it may use. Raises `InvalidRequest`, naming the field, when anything is off.

    `files` are in the work directory when the program starts; those named by `fetch_files` that are there when it has
    ended are in the result. Paths are relative to the work directory; one that leads out of it is `PathTraversal`.
    """

    language: Language | str
    code: str | bytes
    timeout: float
    stdin: str | bytes | None = None
    memory_limit_mb: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits | None = None
    args: Sequence[str] = ()
    files: Mapping[str, bytes | str] = field(default_factory=dict)
    fetch_files: Sequence[str] = ()
    max_code_bytes: int = field(default=MAX_CODE_BYTES, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "language", self._checked_language())
        self._check_code()
        set_field(self, "timeout", check_timeout(self.timeout))
        if self.stdin is not None and not isinstance(self.stdin, str | bytes):
            raise InvalidRequest(f"must be text or bytes, not {type(self.stdin).__name__}", field="stdin")
        if self.memory_limit_mb is not None:
            _positive_int("memory_limit_mb", self.memory_limit_mb, 1 << 20)
        set_field(self, "env", check_env(self.env))
        if self.limits is not None and not isinstance(self.limits, Limits):
            raise InvalidRequest(f"must be Limits, not {type(self.limits).__name__}", field="limits")
        self._check_files_and_args()

    def _check_files_and_args(self) -> None:
        """Most requests have none, and do not load what checks them."""
        set_field = object.__setattr__
        if self.args == self.fetch_files == () and self.files == {}:
            set_field(self, "files", FrozenMapping())
            return
        from warmcell.core import request_files

        set_field(self, "args", request_files.check_args(self.args))
        set_field(self, "files", request_files.check_files(self.files))
        set_field(self, "fetch_files", request_files.check_fetch_files(self.fetch_files))

    def _checked_language(self) -> Language | str:
        """A name, in lower case. Which names there are is for the backend to say: it may have languages of its own."""
        if not isinstance(self.language, str):
            raise InvalidRequest(
                f"must be a name such as 'python', not {type(self.language).__name__}", field="language"
            )
        name = self.language.lower()
        if not 1 <= len(name) <= 40 or not set(name) <= _NAME_CHARACTERS or not name[0].isalnum():
            raise InvalidRequest(f"{self.language[:40]!r} is no name", field="language", hint="such as 'python'")
        return _LANGUAGES.get(name, name)

    def _check_code(self) -> None:
        _positive_int("max_code_bytes", self.max_code_bytes, 1 << 30)
        if isinstance(self.code, bytes):
            if self.language is not Language.WASM:
                raise InvalidRequest("bytes are for wasm only; give text", field="code")
            size, blank = len(self.code), not self.code
        else:
            # Length first: encoding 100 MB of text only to refuse it would be our own denial of service.
            if isinstance(self.code, str) and len(self.code) > self.max_code_bytes:
                raise self._oversized()
            size, blank = len(check_text("code", self.code).encode()), not self.code.strip()
        if blank:
            raise InvalidRequest("is empty", field="code")
        if size > self.max_code_bytes:
            raise self._oversized()

    def _oversized(self) -> InvalidRequest:
        return InvalidRequest(
            f"is larger than {self.max_code_bytes} bytes", field="code", hint="put data into files or stdin"
        )

    @property
    def stdin_bytes(self) -> bytes:
        """What the guest reads; without stdin it reads end of file at once."""
        if self.stdin is None:
            return b""
        return self.stdin if isinstance(self.stdin, bytes) else self.stdin.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run cost, all its processes together."""

    cpu_time: float = 0.0
    wall_time: float = 0.0
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Enforced:
    """What really held during a run: the mechanism by name, or None where nothing enforced it."""

    isolation_class: str = "none"
    enforcer: str | None = None
    timeout: str | None = None
    memory: str | None = None
    cpu: str | None = None
    processes: str | None = None
    open_files: str | None = None
    disk: str | None = None
    output: str | None = None
    network: str | None = None
    filesystem_read: str | None = None
    filesystem_write: str | None = None
    environment: str | None = None
    syscalls: str | None = None


@dataclass(frozen=True, slots=True)
class Denial:
    """Something the guest was refused, by which rule, and how the caller (never the guest) could allow it."""

    kind: str
    what: str
    rule: str
    hint: str


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What happened. A non-zero exit is a result like any other.

    `duration` is the guest's own, from the moment that it could run; `queued` is what the caller waited before that.
    `files` has those that the request fetched and the program left; one that could not be taken is among the denials.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    signal: int | None = None
    duration: float = 0.0
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    usage: Usage = Usage()
    enforced: Enforced = Enforced()
    outputs: list[dict[str, Any]] = field(default_factory=list)
    denials: list[Denial] = field(default_factory=list)
    queued: float = 0.0
    files: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.stdout and not self.stdout_bytes:
            object.__setattr__(self, "stdout_bytes", self.stdout.encode("utf-8", "surrogatepass"))
        if self.stderr and not self.stderr_bytes:
            object.__setattr__(self, "stderr_bytes", self.stderr.encode("utf-8", "surrogatepass"))

    @property
    def ok(self) -> bool:
        """Whether the guest ended by itself with status 0."""
        return self.exit_code == 0

    def to_dict(self) -> dict[str, Any]:
        """Every field in JSON types; bytes only where they are not the text's UTF-8, as `..._base64`; files too."""
        from base64 import b64encode
        from dataclasses import asdict

        plain = asdict(self)
        for name in ("stdout", "stderr"):
            raw: bytes = plain.pop(f"{name}_bytes")
            if not _is_utf8(raw):
                plain[f"{name}_base64"] = b64encode(raw).decode()
        plain["files"] = {path: b64encode(content).decode() for path, content in self.files.items()}
        return plain

    def to_json(self) -> str:
        """`to_dict()` as one line of ASCII: lone surrogates and odd terminals cannot break it."""
        import json

        return json.dumps(self.to_dict(), ensure_ascii=True, default=str)

    def __repr__(self) -> str:
        from warmcell.core.result_display import in_short

        return in_short(self)

    def _repr_html_(self) -> str:
        from warmcell.core.result_display import as_html

        return as_html(self)


@dataclass(frozen=True, slots=True)
class EnforcedLimits:
    """Which promises a backend keeps on this host, as measured, not as hoped."""

    timeout: bool = False
    memory: bool = False
    network_isolation: bool = False
    filesystem_read_isolation: bool = False
    filesystem_write_isolation: bool = False
    environment_isolation: bool = False
    process_limit: bool = False
    disk_limit: bool = False
    output_limit: bool = False
    cpu: bool = False


@dataclass(frozen=True, slots=True)
class BackendCapabilities:
    """What a backend can run on this host and what it really enforces.

    `network` names what its guests may reach by rule, where the network is isolated; nothing, unless rules say so.
    `versions` says for a language what runs it, in one line; a toolchain is asked when somebody wants to know.
    """

    supported_languages: tuple[Language | str, ...]
    isolation_class: str
    enforced_limits: EnforcedLimits
    network: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
