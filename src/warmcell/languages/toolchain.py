"""Which host paths a toolchain needs, and no more than those."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache

from warmcell.core.errors import BackendUnavailable
from warmcell.enforcers.host import FileStamp, find_program, is_program, query_tool, stamp
from warmcell.policy.places import is_within

#: What a pure installation directory may contain at its top. A home or a project has other things as well (`.ssh`,
#: `.env`, `src`), and is not shown as a whole.
_INSTALLED = frozenset(
    """bin sbin include lib lib32 lib64 libexec share man doc docs etc ssl
    pyvenv.cfg .gitignore .lock CACHEDIR.TAG""".split()
)
#: These with any suffix (`README.md`, `LICENSE-MIT`).
_ABOUT_IT = ("LICENSE", "README", "CHANGELOG", "COPYRIGHT", "COPYING", "VERSION", "NEWS")
#: Conda environments contain much more, all of it installed.
_ENVIRONMENT_MARK = "conda-meta"


def configured_program(path: str, name: str) -> str:
    """The program that the caller configured: a path, or a name on PATH."""
    found = os.path.abspath(path) if os.sep in path else find_program(path)
    if found is None or not is_program(found):
        raise BackendUnavailable(
            f"{name}: {path!r} is not an executable file", hint=f"correct ProcessConfig({name}=...)"
        )
    return found


def visible_paths(program: str) -> tuple[str, ...]:
    """What a cage must show so that the program starts: its installation, if that is a directory of its own
    (`/opt/node` for `/opt/node/bin/node`), else only the file itself and its shared libraries.
    """
    return _visible_paths(stamp(program)) if beside_usr([program]) else ()


@lru_cache(maxsize=64)
def _visible_paths(identity: FileStamp) -> tuple[str, ...]:
    program = identity[0]
    directory = os.path.dirname(program)
    tree = os.path.dirname(directory) if os.path.basename(directory) == "bin" else directory
    return (tree,) if is_installation(tree) else beside_usr([program, *linked_libraries(program)])


def is_installation(directory: str) -> bool:
    """Whether the directory contains only installed files."""
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    if "bin" not in names and "lib" not in names:
        return False
    return _ENVIRONMENT_MARK in names or all(name in _INSTALLED or name.startswith(_ABOUT_IT) for name in names)


def linked_libraries(program: str) -> list[str]:
    """The shared libraries that the loader would load for it, by the names that it looks for."""
    try:
        said = query_tool([find_program("ldd") or "/usr/bin/ldd", program])
    except BackendUnavailable:
        return []  # static, or not a binary
    found = (line.partition(" => ")[2].rpartition(" (0x")[0] for line in said.splitlines())
    return [path for path in found if path.startswith("/")]


def symlink_chain(path: str) -> list[str]:
    """The path and every path that it leads to, one link at a time; a cage must contain them all."""
    chain = [path]
    while os.path.islink(path) and len(chain) < 40:
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        chain.append(path)
    return chain


def beside_usr(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths that `/usr` does not already cover, shortest first, none below another."""
    kept: list[str] = []
    for path in sorted({os.path.normpath(path) for path in paths if path}, key=lambda item: (len(item), item)):
        covered = is_within(os.path.realpath(path), "/usr") and (is_within(path, "/usr") or _is_usr_link(path))
        if not covered and not any(is_within(path, other) for other in kept):
            kept.append(path)
    return tuple(kept)


def _is_usr_link(path: str) -> bool:
    top = "/" + path.split("/")[1]
    return os.path.islink(top) and is_within(os.path.realpath(top), "/usr")
