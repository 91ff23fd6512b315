"""A request's files and arguments, checked. Pure module; loaded by requests that have any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warmcell.core.errors import InvalidRequest
from warmcell.core.paths import split_relative
from warmcell.core.types import MIB, FrozenMapping, check_text

MOST_FILES = 1000
#: All files of a request together, and all that a result carries.
MOST_FILE_BYTES = 64 * MIB
#: What Linux passes to a program: one argument, and (with room for the environment) all of them.
LONGEST_ARGUMENT = 128 * 1024 - 1
LONGEST_ARGUMENTS = MIB


def check_files(files: object) -> Mapping[str, bytes]:
    """Content by path inside the work directory, or `InvalidRequest` / `PathTraversal` that names what is wrong."""
    if not isinstance(files, Mapping):
        raise InvalidRequest(f"must be a mapping of path to content, not {type(files).__name__}", field="files")
    if len(files) > MOST_FILES:
        raise InvalidRequest(f"are more than {MOST_FILES}", field="files", hint="send an archive and unpack it inside")
    checked = {_place(path, "files"): _content(path, content) for path, content in files.items()}
    if len(checked) < len(files):
        raise InvalidRequest("name the same path twice", field="files")
    for path in checked:
        _refuse_file_as_directory(path, checked)
    if sum(map(len, checked.values())) > MOST_FILE_BYTES:
        raise InvalidRequest(f"have more than {MOST_FILE_BYTES} bytes together", field="files", hint="use a Sandbox")
    return FrozenMapping(checked)


def check_fetch_files(paths: object) -> tuple[str, ...]:
    """Paths inside the work directory, each once."""
    names = [_place(path, "fetch_files") for path in _listed(paths, "fetch_files")]
    if len(names) > MOST_FILES:
        raise InvalidRequest(f"are more than {MOST_FILES}", field="fetch_files", hint="have the program pack them")
    return tuple(dict.fromkeys(names))


def check_args(args: object) -> tuple[str, ...]:
    """Arguments that the kernel passes on as they are."""
    checked = tuple(check_text("args", item) for item in _listed(args, "args"))
    sizes = [len(item.encode()) + 1 for item in checked]
    if sum(sizes) > LONGEST_ARGUMENTS or max(sizes, default=0) > LONGEST_ARGUMENT:
        raise InvalidRequest("longer than the kernel passes to a program", field="args", hint="use stdin or files")
    return checked


def _listed(values: object, field: str) -> Sequence[object]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise InvalidRequest(f"must be a list of texts, not {type(values).__name__}", field=field)
    return values


def _place(path: object, field: str) -> str:
    names = split_relative(path)  # type: ignore[arg-type]
    if not names:
        raise InvalidRequest("is the work directory itself", field=field, hint="name a file in it")
    return "/".join(names)


def _content(path: object, content: object) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if not isinstance(content, bytes):
        raise InvalidRequest(f"must be text or bytes, not {type(content).__name__}", field=f"files[{path!r}]")
    return content


def _refuse_file_as_directory(path: str, files: Mapping[str, bytes]) -> None:
    above = path.rpartition("/")[0]
    while above:
        if above in files:
            raise InvalidRequest(f"have {above!r} as a file and as the directory of {path!r}", field="files")
        above = above.rpartition("/")[0]
