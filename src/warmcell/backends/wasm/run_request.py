"""The validated input of one run, and the host directories behind its preopens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from warmcell.cage.records import NamedTuple
from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass, field
from warmcell.core.types import MIB, EffectiveLimits, check_env, check_text, check_timeout, is_plain
from warmcell.guest.wasm.protocol import RunLimits
from warmcell.lifetime.descriptors import host_failure
from warmcell.runner.listening import Listener

_MAX_FUEL = (1 << 63) - 1
_MOST_KNOWN = 64
Fetch = Callable[[bytes], bytes]


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

    def __post_init__(self) -> None:
        if self.is_validated:
            return
        if not self.argv:
            raise InvalidRequest("is empty", field="argv")
        check_timeout(self.limits.timeout)
        check_fuel(self.limits.fuel)
        paths = [text for preopen in self.preopens for text in (os.fspath(preopen.host_path), preopen.guest_path)]
        if not _are_plain(self.argv, self.env, paths):
            _check_texts("argv", self.argv)
            check_env(self.env)
            _check_texts("preopens", paths)


def _are_plain(argv: Sequence[str], env: Mapping[str, str], paths: Sequence[str]) -> bool:
    """Whether all texts are valid, checked together because they nearly always are."""
    try:
        names = "".join(env)
        return is_plain("".join([*argv, names, *env.values(), *paths])) and "=" not in names and "" not in env
    except (AttributeError, TypeError):
        return False


def _check_texts(name: str, texts: Sequence[str]) -> None:
    for text in texts:
        check_text(name, text)


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
    """The cached directory, if its path still leads to the same inode without a link at the end."""
    directory = known.get(preopen)
    if directory is None:
        return None
    try:
        found = os.lstat(directory.host_path)
    except OSError:
        return None
    return directory if (found.st_dev, found.st_ino) == (directory.device, directory.inode) else None


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
            found = os.lstat(os.path.join(directory, path))
        except OSError as error:
            raise host_failure(error, "open a protected path") from None
        yield ReadOnlyPath(path, path in paths, found.st_dev, found.st_ino)
