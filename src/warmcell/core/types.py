"""Requests, limits, languages and capabilities. Everything is checked once, here, when it is constructed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warmcell.core import request_checks as checks
from warmcell.core.errors import InvalidRequest
from warmcell.core.language import ALIASES, Language
from warmcell.core.records import dataclass, field
from warmcell.core.request_checks import MAX_TIMEOUT, MIB, FrozenMapping, check_env, check_text, check_timeout, is_plain
from warmcell.core.results import Connection, Denial, Enforced, ExecResult, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
else:  # resolves the annotations without importing `typing`
    Any = object

__all__ = ["ALIASES", "DEFAULT_OUTPUT_BYTES", "ENOUGH_OPEN_FILES", "MAX_CODE_BYTES", "MAX_TIMEOUT", "MIB"]
__all__ += ["BackendCapabilities", "Connection", "Denial", "EffectiveLimits", "Enforced", "EnforcedLimits"]
__all__ += ["ExecRequest", "ExecResult", "FrozenMapping", "Language", "Limits", "Usage", "check_env"]
__all__ += ["check_text", "check_timeout", "is_plain"]

MAX_CODE_BYTES = 8 * MIB
DEFAULT_OUTPUT_BYTES = MIB
#: With this many descriptors every interpreter can start; with fewer only some can.
ENOUGH_OPEN_FILES = 32


_LANGUAGES = {str(member): member for member in Language}
_LANGUAGES.update({alias: Language(name) for name, aliases in ALIASES.items() for alias in aliases})
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789+#._-")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that a caller sets for a run, all its processes together. `None`: not set."""

    memory_mb: int | None = None
    cpu_seconds: float | None = None
    processes: int | None = None
    open_files: int | None = None
    disk_mb: int | None = None
    output_bytes: int | None = None
    cpus: float | None = None
    #: Of each device, the driver's context included.
    gpu_memory_mb: int | None = None

    def __post_init__(self) -> None:
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if value is not None:
                check = checks.check_positive_number if isinstance(largest, float) else checks.check_positive_int
                check(name, value, largest)

    def cap_with(self, ceiling: Limits) -> Limits:
        """The smaller of each pair, or the one that is set: a request can tighten a policy, never widen it."""

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
    "gpu_memory_mb": 1 << 24,
}


@dataclass(frozen=True, slots=True)
class EffectiveLimits:
    """The limits of a run, all set; these are the defaults. `None` for cpu: only the timeout bounds it."""

    memory_mb: int = 512
    cpu_seconds: float | None = None
    processes: int = 128
    open_files: int = 1024
    disk_mb: int = 256
    output_bytes: int = DEFAULT_OUTPUT_BYTES
    cpus: float | None = None
    gpu_memory_mb: int | None = None

    def as_limits(self) -> Limits:
        """These limits as `Limits`, for a policy that is passed on."""
        return Limits(**{name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """Code to run and what it may use. Raises `InvalidRequest`, which names the field, if anything is wrong.

    `files` are in the work directory when the program starts. Those named by `fetch_files` that exist after the run are
    in the result. Paths are relative to the work directory; one that leads out of it raises `PathTraversal`.
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
    #: Whether printing more than `Limits.output_bytes` ends the run, with SIGXFSZ, or the rest is left out.
    ends_at_output_limit: bool = field(default=False, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        if type(self.language) is not Language:
            set_field(self, "language", self._check_language())
        if not self._has_plain_code():
            self._check_code()
        set_field(self, "timeout", check_timeout(self.timeout))
        if self.stdin is not None and not isinstance(self.stdin, str | bytes):
            raise InvalidRequest(f"must be text or bytes, not {type(self.stdin).__name__}", field="stdin")
        if self.memory_limit_mb is not None:
            checks.check_positive_int("memory_limit_mb", self.memory_limit_mb, 1 << 20)
        set_field(self, "env", FrozenMapping() if type(self.env) is dict and not self.env else check_env(self.env))
        if self.limits is not None and not isinstance(self.limits, Limits):
            raise InvalidRequest(f"must be Limits, not {type(self.limits).__name__}", field="limits")
        self._check_files_and_args()

    def _check_files_and_args(self) -> None:
        set_field = object.__setattr__
        if self.args == self.fetch_files == () and self.files == {}:
            set_field(self, "files", FrozenMapping())
            return
        set_field(self, "args", checks.check_args(self.args))
        set_field(self, "files", checks.check_files(self.files))
        set_field(self, "fetch_files", checks.check_fetch_files(self.fetch_files))

    def _check_language(self) -> Language | str:
        """The language's own name. Unknown names pass: the backend decides, and may have languages of its own."""
        if not isinstance(self.language, str):
            raise InvalidRequest(
                f"must be a name such as 'python', not {type(self.language).__name__}", field="language"
            )
        name = self.language.lower()
        if not 1 <= len(name) <= 40 or not set(name) <= _NAME_CHARACTERS or not name[0].isalnum():
            raise InvalidRequest(f"invalid name {self.language[:40]!r}", field="language", hint="such as 'python'")
        return _LANGUAGES.get(name, name)

    def _has_plain_code(self) -> bool:
        """A quick test that most code passes: `_check_code` would accept it."""
        code = self.code
        is_short = type(code) is str and len(code) <= self.max_code_bytes == MAX_CODE_BYTES
        return is_short and code.isascii() and "\0" not in code and not code.isspace() and code != ""

    def _check_code(self) -> None:
        checks.check_positive_int("max_code_bytes", self.max_code_bytes, 1 << 30)
        if isinstance(self.code, bytes):
            if self.language is not Language.WASM:
                raise InvalidRequest("bytes are for wasm only; give text", field="code")
            size, blank = len(self.code), not self.code
        else:
            # Length first: encoding 100 MB of text only to refuse it would be our own denial of service.
            if isinstance(self.code, str) and len(self.code) > self.max_code_bytes:
                raise self._too_large()
            size, blank = len(check_text("code", self.code).encode()), not self.code.strip()
        if blank:
            raise InvalidRequest("is empty", field="code")
        if size > self.max_code_bytes:
            raise self._too_large()

    def _too_large(self) -> InvalidRequest:
        return InvalidRequest(
            f"is larger than {self.max_code_bytes} bytes", field="code", hint="put data into files or stdin"
        )

    @property
    def stdin_bytes(self) -> bytes:
        """The input of the guest; empty without stdin, so that it reads end of file at once."""
        if self.stdin is None:
            return b""
        return self.stdin if isinstance(self.stdin, bytes) else self.stdin.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class EnforcedLimits:
    """Which limits a backend enforces on this host, as measured."""

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
    """The languages that a backend can run on this host, and what it enforces.

    `network` lists what guests may reach by rule where the network is isolated.
    `versions` maps a language to its toolchain's version line; a toolchain is asked at the first look-up.
    """

    supported_languages: tuple[Language | str, ...]
    isolation_class: str
    enforced_limits: EnforcedLimits
    network: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
