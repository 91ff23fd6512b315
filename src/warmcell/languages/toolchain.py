"""Which host directories a toolchain needs, and no more of the host than that."""

from __future__ import annotations

import os
from collections.abc import Iterable

from warmcell.core.errors import BackendUnavailable
from warmcell.enforcers.host import find_program, is_program
from warmcell.policy.places import is_within

#: Directories that hold far more than a toolchain, whatever was installed into them.
_SHARED_DIRECTORIES = (
    "/",
    "/home",
    "/root",
    "/opt",
    "/var",
    "/etc",
    "/tmp",
    "/mnt",
    "/srv",
    "/run",
    "/Users",
    "/private",
)


def configured_program(path: str, name: str) -> str:
    """The program that the caller configured: a path, or a name on PATH."""
    found = os.path.abspath(path) if os.sep in path else find_program(path)
    if found is None or not is_program(found):
        raise BackendUnavailable(
            f"{name}: {path!r} is not an executable file", hint=f"correct ProcessConfig({name}=...)"
        )
    return found


def is_shared(directory: str) -> bool:
    """Whether showing this directory to a guest would show a home or another collection of unrelated things."""
    home = os.path.expanduser("~")
    personal = (home, os.path.realpath(home), os.path.join(home, ".local"), os.path.join(home, ".config"))
    return directory in _SHARED_DIRECTORIES or directory in personal or is_within(home, directory)


def install_tree(program: str) -> str:
    """The smallest tree that is the program's installation: `/opt/node` for `/opt/node/bin/node`."""
    directory = os.path.dirname(program)
    tree = os.path.dirname(directory) if os.path.basename(directory) == "bin" else directory
    return next((place for place in (tree, directory) if not is_shared(place)), program)


def symlink_chain(path: str) -> list[str]:
    """The path and every path that it leads to, one link at a time; a cage must hold them all."""
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
