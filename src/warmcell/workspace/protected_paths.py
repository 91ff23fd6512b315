"""Paths in a host directory whose content tools of the host execute: git's configuration and hooks, editor settings.

A guest that could write them would have its code run outside of the cage, by the next `git status` or by an editor.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

_GIT = ("config", "config.worktree", "hooks", "commondir")
_WORKTREE = ("config.worktree", "commondir")
_MAX_SUBMODULES, _MAX_DEPTH = 32, 8
#: Repositories below the directory: how many are protected, how deep they may lie, and how many directories are listed.
_MAX_REPOSITORIES, _MAX_LEVELS, _MAX_LISTED = 32, 4, 2000
#: Large, and full of other people's files.
_NOT_ENTERED = frozenset({".git", "node_modules", ".venv", "__pycache__"})
_TOP = (".husky", ".githooks", ".vscode", ".idea")
#: Relative to the directory. The host's own file methods refuse to change them.
PROTECTED: tuple[tuple[str, ...], ...] = (
    *((".git", name) for name in (*_GIT, "modules", "worktrees")),
    *((name,) for name in _TOP),
)


_GIT_FLAGS = frozenset({*_GIT, "modules", "worktrees"})


def flag_reason(path: str) -> str | None:
    """Why a changed file needs a look before tools of the host are used in that directory; None if it does not.

    Also for what cannot be protected: a repository that a guest created, at the top or deeper.
    """
    names = path.split("/")
    for name, following in zip(names, [*names[1:], ""], strict=True):
        if name == ".git" and (following in _GIT_FLAGS or not following):
            return "git on the host runs programs that this file names"
        if name in _TOP:
            return "an editor or git on the host runs programs that this file names"
    return None


def find_protected(directory: str) -> Iterator[str]:
    """The protected paths that exist. The cage also keeps the directories above each from being renamed."""
    for repository in (directory, *islice(_find_repositories(directory), _MAX_REPOSITORIES)):
        yield from _find_in_repository(repository, directory)


def _find_repositories(top: str) -> Iterator[str]:
    """Repositories below `top`, the nearest first. Links and directories of other owners are not entered."""
    level, listed = [top], 0
    for _ in range(_MAX_LEVELS):
        below: list[str] = []
        for directory in level[: _MAX_LISTED - listed]:
            listed += 1
            below += _list_directories(directory)
        level = [path for path in below if os.path.basename(path) not in _NOT_ENTERED and _owner(path) == _owner(top)]
        yield from (path for path in level if _kind(os.path.join(path, ".git")))


def _list_directories(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # what we cannot list, a guest with our rights cannot list either
        return []


def _find_in_repository(directory: str, top: str) -> Iterator[str]:
    git = os.path.join(directory, ".git")
    # In a worktree or a submodule it is a file that names the real directory, which is elsewhere. The cage cannot make
    # parts of another owner's directory read-only, so that is read-only as a whole.
    if _kind(git) == stat.S_IFREG or (_kind(git) == stat.S_IFDIR and _owner(git) != _owner(top)):
        yield git
    elif _kind(git) == stat.S_IFDIR:
        yield from _git_directory(git)
    for name in _TOP:
        if _kind(path := os.path.join(directory, name)) in (stat.S_IFREG, stat.S_IFDIR):
            yield path


def _git_directory(git: str) -> Iterator[str]:
    """A repository, its worktrees and its submodules."""
    modules = os.path.join(git, "modules")
    _create_missing(git)
    worktrees = _list_directories(os.path.join(git, "worktrees"))
    for place, names in ((git, _GIT), *((worktree, _WORKTREE) for worktree in worktrees[:_MAX_SUBMODULES])):
        for name in names:
            if _kind(path := os.path.join(place, name)) in (stat.S_IFREG, stat.S_IFDIR):
                yield path
    try:
        submodules = list(islice(_find_submodules(modules, _MAX_DEPTH), _MAX_SUBMODULES + 1))
        owners = {_owner(path) for submodule in submodules for path in _path_from(modules, submodule)}
    except OSError:  # a directory that we cannot list
        submodules, owners = [], {(-1, -1)}
    if len(submodules) > _MAX_SUBMODULES or owners - {_owner(git)}:  # each path costs every run a mount
        yield modules
    else:
        for submodule in submodules:
            yield from _git_directory(submodule)


def _create_missing(git: str) -> None:
    """Only what exists can be made read-only, so what a guest could create is created before it.

    `commondir` says where git finds the configuration; "." is the repository itself, as without the file.
    """
    with suppress(OSError):  # nor can a guest, which has our rights at most
        os.mkdir(os.path.join(git, "hooks"))
    with suppress(OSError), open(os.path.join(git, "commondir"), "x") as file:
        file.write(".\n")


def _find_submodules(directory: str, depth: int) -> Iterator[str]:
    """Submodules are stored by their paths, such as `modules/libs/zlib`."""
    for name in sorted(os.listdir(directory)) if depth and _kind(directory) == stat.S_IFDIR else ():
        path = os.path.join(directory, name)
        if _kind(os.path.join(path, "HEAD")) or _kind(os.path.join(path, "config")):
            yield path
        else:
            yield from _find_submodules(path, depth - 1)


def _path_from(top: str, path: str) -> Iterator[str]:
    """The directories from `top` down to `path`, both included."""
    while len(path) >= len(top):
        yield path
        path = os.path.dirname(path)


def _owner(path: str) -> tuple[int, int]:
    state = os.lstat(path)
    return state.st_uid, state.st_gid


def _kind(path: str) -> int:
    """The file type, or 0 if it does not exist. Links are not followed."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return 0
