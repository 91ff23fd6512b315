"""What one run gets, checked; and the host directories behind its preopens, as they are now."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from warmcell.cage.records import NamedTuple
from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass, field
from warmcell.core.types import DEFAULT_OUTPUT_BYTES, MIB, check_env, check_text, check_timeout, is_plain
from warmcell.lifetime.descriptors import host_failure
from warmcell.runner.listening import Listener

DEFAULT_OPEN_FILES = 1024
_MAX_FUEL = (1 << 63) - 1
_MOST_KNOWN = 64
Fetch = Callable[[bytes], bytes]


class Preopen(NamedTuple):
    """A host directory that the guest sees at `guest_path`."""

    host_path: str | os.PathLike[str]
    guest_path: str
    writable: bool = False


class Directory(NamedTuple):
    """A host directory that was looked at: no other inode is ever used in its place."""

    host_path: str
    is_writable: bool
    device: int
    inode: int


#: What a worker was shown. Two of them are equally confined exactly when this is equal.
Directories = tuple[Directory, ...]


class RunTerms(NamedTuple):
    """What a run is given besides its own words, as its worker needs it: most runs of a worker are given the same."""

    key: str
    timeout: float
    memory_bytes: int
    fuel: int | None
    #: Of each: where the worker finds it, where the guest does, whether it is writable, device and inode.
    preopens: tuple[tuple[str, str, bool, int, int], ...]
    output_bytes: int
    open_files: int
    file_bytes: int | None
    may_fetch: bool
    may_exec: bool


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Everything about one run except its module. Raises `InvalidRequest` that names the field."""

    argv: Sequence[str]
    timeout: float
    memory_limit_mb: int
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    fuel: int | None = None
    output_bytes: int = DEFAULT_OUTPUT_BYTES
    preopens: Sequence[Preopen] = ()
    fetch: Fetch | None = None
    listener: Listener | None = None
    cpu_seconds: float | None = None
    open_files: int = DEFAULT_OPEN_FILES
    file_bytes: int | None = None
    #: All of it comes from what was checked when it was made.
    was_checked: bool = False

    def __post_init__(self) -> None:
        if self.was_checked:
            return
        if not self.argv:
            raise InvalidRequest("is empty", field="argv")
        check_timeout(self.timeout)
        check_fuel(self.fuel)
        places = [text for preopen in self.preopens for text in (os.fspath(preopen.host_path), preopen.guest_path)]
        if not _are_plain(self.argv, self.env, places):
            _check_texts("argv", self.argv)
            check_env(self.env)
            _check_texts("preopens", places)

    @property
    def memory_bytes(self) -> int:
        return self.memory_limit_mb * MIB


def _are_plain(argv: Sequence[str], env: Mapping[str, str], places: Sequence[str]) -> bool:
    """Whether nothing can be said against any of them, as nearly always: told at once, and not of which."""
    try:
        names = "".join(env)
        return is_plain("".join([*argv, names, *env.values(), *places])) and "=" not in names and "" not in env
    except (AttributeError, TypeError):
        return False


def _check_texts(name: str, texts: Sequence[str]) -> None:
    for text in texts:
        check_text(name, text)


def check_fuel(fuel: object) -> None:
    """None, or a positive whole number."""
    if fuel is None:
        return
    if isinstance(fuel, bool) or not isinstance(fuel, int) or not 0 < fuel <= _MAX_FUEL:
        raise InvalidRequest("must be a positive whole number", field="fuel")


def look_at_directories(preopens: Sequence[Preopen], known: dict[Preopen, Directory]) -> list[Directory]:
    """Resolves links once, here; what a path leads to afterwards is compared with what it led to now.

    `known`, which is the caller's to keep, has those that need only be compared.
    """
    return [_known(preopen, known) or _look_at(preopen, known) for preopen in preopens]


def _known(preopen: Preopen, known: dict[Preopen, Directory]) -> Directory | None:
    """What the path led to before, if no link was in it then, and the same inode is there now and not behind one."""
    directory = known.get(preopen)
    if directory is None:
        return None
    try:
        found = os.lstat(directory.host_path)
    except OSError:
        return None
    return directory if (found.st_dev, found.st_ino) == directory[2:] else None


def _look_at(preopen: Preopen, known: dict[Preopen, Directory]) -> Directory:
    try:
        descriptor = os.open(preopen.host_path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        # By its guest path: the text may reach a model, which has no use for names of the host.
        hint = "the directory of the host behind it must exist"
        raise InvalidRequest(f"{preopen.guest_path}: {error.strerror}", field="preopens", hint=hint) from None
    except OSError as error:
        raise host_failure(error, f"open the directory for {preopen.guest_path}") from None
    try:
        # The kernel has resolved all links by now, and says where they led.
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    directory = Directory(path, preopen.writable, found.st_dev, found.st_ino)
    if path == os.fspath(preopen.host_path) and len(known) < _MOST_KNOWN:
        known[preopen] = directory
    return directory
