"""The validated input of one run: its module, its arguments and limits, the host directories behind its preopens.

And its end: turns a worker's exit report into a result or an error.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence

from warmcell.cage.records import NamedTuple
from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, FuelExhausted, InvalidRequest, MemoryExceeded
from warmcell.core.lines import one_line
from warmcell.core.records import dataclass, field
from warmcell.core.types import (
    MIB,
    EffectiveLimits,
    Enforced,
    ExecResult,
    Usage,
    check_env,
    check_text,
    check_timeout,
    is_plain,
)
from warmcell.guest.wasm.protocol import ExitReport, RunLimits
from warmcell.lifetime.descriptors import host_failure
from warmcell.runner.listening import Listener
from warmcell.runner.outcome import text_of
from warmcell.runner.streams import Capture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

_MAX_FUEL = (1 << 63) - 1
_MOST_KNOWN = 64
Fetch = Callable[[bytes], bytes]
MAGIC = b"\0asm"
CORE_VERSION = b"\1\0\0\0"
START = "_start"
#: Small modules are often run repeatedly; larger ones are not worth keeping in memory.
_SMALL_BYTES = 64 << 10
_KILLED = 137


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """A module. `is_own` marks those that Warmcell ships; they may import the module `sandbox`.

    `read` returns the bytes; the files of our own modules are read only to compile them.
    """

    format: Literal["wasm", "wat", "component"]
    read: Callable[[], bytes]
    digest: str
    entry: str = START
    is_own: bool = False
    #: A harmless command line. A worker runs it once to learn which memory pages a run touches.
    rehearsal: Sequence[str] = ()
    #: Derived: its names inside a worker, without fuel and with fuel.
    loaded_names: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        name = f"{self.digest}:{self.entry}:{self.is_own:d}"
        object.__setattr__(self, "loaded_names", (f"{name}:0", f"{name}:1"))


def source_from_code(code: str | bytes) -> ModuleSource:
    """Recognises a binary module, base64 of one, or WAT text; `InvalidRequest` if the code is none of the three."""
    return _recognise_cached(code) if len(code) <= _SMALL_BYTES else _recognise(code)


def _recognise(code: str | bytes) -> ModuleSource:
    if isinstance(code, bytes):
        return _from_bytes(code)
    text = code.strip()
    if text.startswith(("(", ";;")):
        return _make("wat", text.encode())
    return _from_bytes(_from_base64(text))


_recognise_cached = functools.lru_cache(maxsize=64)(_recognise)


def _from_bytes(data: bytes) -> ModuleSource:
    if not data.startswith(MAGIC):
        if data.lstrip().startswith((b"(", b";;")):
            return _make("wat", data)
        raise InvalidRequest("invalid module: it does not start with the WebAssembly magic number", field="code")
    if data[4:8] != CORE_VERSION:
        raise InvalidRequest(
            "invalid module: not a core module of version 1 (components are not supported)", field="code"
        )
    return _make("wasm", data)


def _from_base64(text: str) -> bytes:
    import base64
    import binascii

    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(
            "is neither WAT text nor a base64-encoded module", field="code", hint="give the binary module as bytes"
        ) from None


def _make(form: Literal["wasm", "wat"], data: bytes) -> ModuleSource:
    import hashlib

    return ModuleSource(form, lambda: data, hashlib.sha256(form.encode() + b"\0" + data).hexdigest())


class Preopen(NamedTuple):
    """A host directory that the guest sees at `guest_path`."""

    host_path: str | os.PathLike[str]
    guest_path: str
    writable: bool = False
    #: Paths in a writable directory, relative to it, that a caged worker cannot change.
    read_only: tuple[str, ...] = ()


class ReadOnlyPath(NamedTuple):
    """A path in a writable directory, and its identity. The directories above it are listed too, as not `is_end`."""

    path: str
    is_end: bool
    device: int
    inode: int
    #: When a file changed, as the inode of a replaced one may be used again; 0 for a directory.
    changed: int


class HostDirectory(NamedTuple):
    """A resolved host directory. Another inode is never used in its place."""

    host_path: str
    is_writable: bool
    device: int
    inode: int
    read_only: tuple[ReadOnlyPath, ...] = ()


#: What is mounted in a worker, sorted. Workers with equal mounts are interchangeable.
Mounts = tuple[HostDirectory, ...]


def run_limits(timeout: float, limits: EffectiveLimits, fuel: int | None, *, has_files: bool) -> RunLimits:
    return RunLimits(
        timeout,
        limits.memory_mb * MIB,
        fuel,
        limits.output_bytes,
        limits.open_files,
        limits.disk_mb * MIB if has_files else None,
        limits.cpu_seconds,
    )


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Everything about one run except its module. Raises `InvalidRequest` that names the field."""

    argv: Sequence[str]
    limits: RunLimits
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    preopens: Sequence[Preopen] = ()
    fetch: Fetch | None = None
    listener: Listener | None = None
    #: Everything in it was validated before.
    is_validated: bool = False
    #: The directories of `preopens` are removed after it.
    has_own_directories: bool = False

    def __post_init__(self) -> None:
        if self.is_validated:
            return
        if not self.argv:
            raise InvalidRequest("is empty", field="argv")
        check_timeout(self.limits.timeout)
        check_fuel(self.limits.fuel)
        paths = [text for preopen in self.preopens for text in (os.fspath(preopen.host_path), preopen.guest_path)]
        if not _are_plain(self.argv, self.env, paths):
            for text in self.argv:
                check_text("argv", text)
            check_env(self.env)
            for text in paths:
                check_text("preopens", text)


def _are_plain(argv: Sequence[str], env: Mapping[str, str], paths: Sequence[str]) -> bool:
    """Whether all texts are valid, checked together because they nearly always are."""
    try:
        names = "".join(env)
        return is_plain("".join([*argv, names, *env.values(), *paths])) and "=" not in names and "" not in env
    except (AttributeError, TypeError):
        return False


def check_fuel(fuel: object) -> None:
    """Fuel is None or a positive integer."""
    if fuel is None:
        return
    if isinstance(fuel, bool) or not isinstance(fuel, int) or not 0 < fuel <= _MAX_FUEL:
        raise InvalidRequest("must be a positive integer", field="fuel")


def resolve_preopens(preopens: Sequence[Preopen], known: dict[Preopen, HostDirectory]) -> list[HostDirectory]:
    """Resolves links once. The worker later refuses a path that leads to another inode than it does now.

    `known`, which the caller keeps, caches directories without links in their path: those are only compared.
    """
    return [_from_cache(preopen, known) or _resolve(preopen, known) for preopen in preopens]


def _from_cache(preopen: Preopen, known: dict[Preopen, HostDirectory]) -> HostDirectory | None:
    """The cached directory, if its path still leads to the same inode without a link at the end.

    If a read-only path was replaced, the directory is resolved again, and so gets another worker: the kernel removes a
    mount when the host renames another file over its mount point, as git does with its configuration.
    """
    directory = known.get(preopen)
    if directory is None:
        return None
    try:
        found = os.lstat(directory.host_path)
        is_same = (found.st_dev, found.st_ino) == (directory.device, directory.inode)
        is_same = is_same and all(_look_up(directory.host_path, *item[:2]) == item for item in directory.read_only)
    except OSError:
        return None
    return directory if is_same else None


def _resolve(preopen: Preopen, known: dict[Preopen, HostDirectory]) -> HostDirectory:
    try:
        descriptor = os.open(preopen.host_path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        # By its guest path: the text may reach a model, which must not see names of the host.
        hint = "the host directory behind it must exist"
        raise InvalidRequest(f"{preopen.guest_path}: {error.strerror}", field="preopens", hint=hint) from None
    except OSError as error:
        raise host_failure(error, f"open the directory for {preopen.guest_path}") from None
    try:
        # The kernel has resolved all links by now.
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    read_only = tuple(_find_read_only(path, preopen.read_only)) if preopen.writable else ()
    directory = HostDirectory(path, preopen.writable, found.st_dev, found.st_ino, read_only)
    if path == os.fspath(preopen.host_path) and len(known) < _MOST_KNOWN:
        known[preopen] = directory
    return directory


def _find_read_only(directory: str, paths: Sequence[str]) -> Iterator[ReadOnlyPath]:
    """Each path after the directories above it: mounts, so that a guest cannot rename them and put others there."""
    above = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "/"}
    for path in sorted({*paths, *above}):
        try:
            yield _look_up(directory, path, path in paths)
        except OSError as error:
            raise host_failure(error, "open a protected path") from None


def _look_up(directory: str, path: str, is_end: bool) -> ReadOnlyPath:
    found = os.lstat(f"{directory}/{path}")
    changed = 0 if stat.S_ISDIR(found.st_mode) else found.st_ctime_ns
    return ReadOnlyPath(path, is_end, found.st_dev, found.st_ino, changed)


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the supervisor knows about a finished run."""

    request: RunRequest
    #: Seconds before the guest could run, and seconds that the guest ran.
    queued: float
    duration: float
    enforced: Enforced


def make_result(report: ExitReport, stdout: Capture, stderr: Capture, context: RunContext) -> ExecResult:
    """Raises the error for a limit that ended the run or for a failure of the worker.

    Besides the worker's own kinds, `cpu` is for a run that the supervisor killed. A run that ended by itself past its
    processor time has exceeded it, too: the supervisor looks at it only now and then.
    """
    limits = context.request.limits
    has_ended = report.kind in ("exit", "trap")
    if has_ended and limits.cpu_seconds is not None and report.cpu_seconds > limits.cpu_seconds:
        report = report._replace(kind="cpu")
    if report.kind == "failed":
        hint = "`ulimit -v unlimited`, or free some memory" if "ulimit -v" in report.message else None
        raise ExecutionFailed(f"the WASM run failed: {one_line(report.message)}", hint=hint)
    result = _result(report, stdout, stderr, context)
    match report.kind:
        case "timeout":
            raise ExecutionTimeout(limits.timeout, result)
        case "cpu":
            raise ExecutionTimeout(limits.cpu_seconds or limits.timeout, result, clock="cpu")
        case "memory":
            raise MemoryExceeded(limits.memory_bytes // MIB, result)
        case "fuel":
            raise FuelExhausted(limits.fuel or 0, result)
    return result


def _result(report: ExitReport, stdout: Capture, stderr: Capture, context: RunContext) -> ExecResult:
    """For a run that a limit ended, the partial result."""
    (out, out_bytes), (err, err_bytes) = text_of(stdout), text_of(stderr)
    # A trap is the guest's own end. Its message goes where a shell would print that of a crash.
    note = report.message.strip() + "\n" if report.kind == "trap" and report.message else ""
    return ExecResult(
        stdout=out,
        stderr=f"{err}\n{note}" if note and err and not err.endswith("\n") else err + note,
        exit_code=report.exit_code if report.kind in ("exit", "trap") else _KILLED,
        duration=context.duration,
        stdout_bytes=out_bytes,
        stderr_bytes=err_bytes + note.encode(),
        stdout_truncated=stdout.total > stdout.cap,
        stderr_truncated=stderr.total > stderr.cap,
        usage=Usage(report.cpu_seconds, context.duration, report.memory_bytes),
        enforced=context.enforced,
        queued=context.queued,
    )


def enforcement(request: RunRequest, isolation_class: str, wasmtime_version: str) -> Enforced:
    """Which mechanism enforces each limit of a run."""
    limits = request.limits
    cpu = "fuel" if limits.fuel is not None else "watchdog" if limits.cpu_seconds is not None else None
    is_writable = any(preopen.writable for preopen in request.preopens)
    per_file = "rlimit per file" if limits.file_bytes is not None else None
    disk = per_file if is_writable else "nothing writable"
    files = "wasi preopens" if request.preopens else "no filesystem"
    network = "host call" if request.fetch is not None else "no sockets"
    return _make_enforced(isolation_class, wasmtime_version, cpu, disk, files, network)


@functools.lru_cache(maxsize=64)
def _make_enforced(
    isolation_class: str, wasmtime_version: str, cpu: str | None, disk: str | None, files: str, network: str
) -> Enforced:
    return Enforced(
        isolation_class=isolation_class,
        enforcer=f"wasmtime {wasmtime_version}",
        timeout="epoch+kill",
        memory="wasmtime limits",
        cpu=cpu,
        processes="wasm",
        open_files="rlimit",
        disk=disk,
        output="supervisor",
        network=network,
        filesystem_read=files,
        filesystem_write=files,
        environment="wasi",
        syscalls="wasm",
    )
