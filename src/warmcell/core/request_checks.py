"""Checks for the fields of a request. Each returns the checked value or raises `InvalidRequest`. Pure module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warmcell.core.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    T = TypeVar("T")
else:  # resolves the annotations without importing `typing`, which takes as long as the rest of this package
    Any = T = object

MIB = 1024 * 1024
MAX_TIMEOUT = 86_400.0
#: Seconds. Longer waits of a caller end here, some thirty years later: the arithmetic of clocks ends at 10**308.
_LONGEST_WAIT = 1e9
MAX_FILES = 1000
#: All files of a request together, and all files in a result.
MAX_FILE_BYTES = 64 * MIB
#: Linux limits: one argument, and all of them with room left for the environment.
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
MAX_ARGUMENTS_BYTES = MIB


class FrozenMapping(dict[str, T]):
    """A read-only dict. Unlike a mapping proxy it can be pickled and copied."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("a request cannot be changed")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[object, ...]:
        return (FrozenMapping, (dict(self),))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def check_kind(name: str, value: object, kind: type[T], hint: str | None = None) -> T:
    if not isinstance(value, kind):
        raise InvalidRequest(f"must be {kind.__name__}, not {type(value).__name__}", field=name, hint=hint)
    return value


def check_positive_int(name: str, value: object, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"must be a whole number, not {type(value).__name__}", field=name)
    if not 1 <= value <= largest:
        # Do not print the value: int-to-str conversion raises for numbers of thousands of digits.
        raise InvalidRequest(f"must be between 1 and {largest}", field=name)


def check_whole(name: str, value: object, smallest: int, largest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise InvalidRequest(f"must be a whole number from {smallest} to {largest}", field=name)
    return value


def check_positive_number(name: str, value: object, largest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):  # `int | float` would be built at every call
        raise InvalidRequest(f"must be a number of seconds, not {type(value).__name__}", field=name)
    if not 0 < value <= largest:  # false for NaN as well
        raise InvalidRequest(f"must be more than 0 and at most {largest:g}", field=name)
    return float(value)


def check_timeout(value: object, name: str = "timeout") -> float:
    """A timeout in seconds; infinity is refused."""
    return check_positive_number(name, value, MAX_TIMEOUT)


def check_wait(value: object, name: str = "timeout") -> float:
    """How long a caller waits, in seconds. Unlike the timeout of a run it may be zero, in the past, or infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:  # NaN
        raise InvalidRequest("must be a number of seconds", field=name, hint="None waits without a limit")
    return float(min(max(value, 0), _LONGEST_WAIT))


def check_text(name: str, value: object) -> str:
    """Text that can be passed to a process unchanged: no NUL, no lone surrogates."""
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
    """A quick test that nearly all text passes: `check_text` would accept it."""
    return type(value) is str and value.isascii() and "\0" not in value


def check_env(env: object, name: str = "env") -> Mapping[str, str]:
    """An environment as a read-only mapping. The error names the key."""
    if not isinstance(env, (dict, Mapping)):  # `dict` first: the test for an abstract class is slow
        raise InvalidRequest(f"must be a mapping of text to text, not {type(env).__name__}", field=name)
    for key, value in env.items():
        if not is_plain(key):
            check_text(f"{name} key", key)
        if not key or "=" in key:
            raise InvalidRequest(f"bad variable name {key!r}", field=f"{name} key")
        if not is_plain(value):
            check_text(f"{name}[{key!r}]", value)
    return FrozenMapping(env)


def check_files(files: object) -> Mapping[str, bytes]:
    """Content by path inside the work directory. A path that leads out of it raises `PathTraversal`."""
    if not isinstance(files, Mapping):
        raise InvalidRequest(f"must be a mapping of path to content, not {type(files).__name__}", field="files")
    if len(files) > MAX_FILES:
        hint = "send an archive and unpack it inside"
        raise InvalidRequest(f"has more than {MAX_FILES} entries", field="files", hint=hint)
    checked = {_file_path(path, "files"): _file_content(path, content) for path, content in files.items()}
    if len(checked) < len(files):
        raise InvalidRequest("has the same path twice", field="files")
    for path in checked:
        _refuse_file_as_directory(path, checked)
    if sum(map(len, checked.values())) > MAX_FILE_BYTES:
        raise InvalidRequest(f"has more than {MAX_FILE_BYTES} bytes in all", field="files", hint="use a Sandbox")
    return FrozenMapping(checked)


def check_fetch_files(paths: object) -> tuple[str, ...]:
    """Paths inside the work directory, each once."""
    names = [_file_path(path, "fetch_files") for path in _check_list(paths, "fetch_files")]
    if len(names) > MAX_FILES:
        raise InvalidRequest(f"has more than {MAX_FILES} paths", field="fetch_files", hint="have the program pack them")
    return tuple(dict.fromkeys(names))


def check_args(args: object) -> tuple[str, ...]:
    """Arguments that execve accepts."""
    checked = tuple(check_text("args", item) for item in _check_list(args, "args"))
    sizes = [len(item.encode()) + 1 for item in checked]
    if sum(sizes) > MAX_ARGUMENTS_BYTES or max(sizes, default=0) > MAX_ARGUMENT_BYTES:
        raise InvalidRequest("argument list too long", field="args", hint="use stdin or files")
    return checked


def _check_list(values: object, field: str) -> Sequence[object]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise InvalidRequest(f"must be a list of texts, not {type(values).__name__}", field=field)
    return values


def _file_path(path: object, field: str) -> str:
    from warmcell.core.paths import split_relative  # only requests with files need it

    names = split_relative(path)  # type: ignore[arg-type]
    if not names:
        raise InvalidRequest("is the work directory itself", field=field, hint="name a file in it")
    return "/".join(names)


def _file_content(path: object, content: object) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if not isinstance(content, bytes):
        raise InvalidRequest(f"must be text or bytes, not {type(content).__name__}", field=f"files[{path!r}]")
    return content


def _refuse_file_as_directory(path: str, files: Mapping[str, bytes]) -> None:
    above = path.rpartition("/")[0]
    while above:
        if above in files:
            raise InvalidRequest(f"has {above!r} as a file and as the directory of {path!r}", field="files")
        above = above.rpartition("/")[0]
