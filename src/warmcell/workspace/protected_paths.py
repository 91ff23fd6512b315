"""Paths in a host directory that tools of the host execute: git's configuration and hooks, editor settings.

A guest that could write them could run code outside of the cage, by the next `git status` or by an editor.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice

from warmcell.core.errors import InvalidRequest
from warmcell.core.light import closing_fd, on_error
from warmcell.lifetime.descriptors import host_failure, is_shortage
from warmcell.lifetime.own_modes import grant_owner, make_directory
from warmcell.workspace.files import write_all
from warmcell.workspace.untrusted_files import open_regular

_GIT = ("config", "config.worktree", "hooks", "commondir")
_WORKTREE = ("config.worktree", "commondir")
_MAX_SUBMODULES, _MAX_DEPTH = 32, 8
#: Of repositories below the directory: how many are protected, how deep, and how many directories are searched.
_MAX_REPOSITORIES, _MAX_LEVELS, _MAX_LISTED = 32, 4, 2000
#: Not searched for repositories: large, with third-party files.
_NOT_ENTERED = frozenset({".git", "node_modules", ".venv", "__pycache__"})
_TOP = (".husky", ".githooks", ".vscode", ".idea")
#: Relative to the directory. The file methods of a sandbox refuse to change them.
PROTECTED: tuple[tuple[str, ...], ...] = (
    *((".git", name) for name in (*_GIT, "modules", "worktrees")),
    *((name,) for name in _TOP),
)


_GIT_FLAGS = frozenset({*_GIT, "modules", "worktrees", "rebase-merge", "sequencer"})
_WRITE = os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def flag_reason(path: str) -> str | None:
    """Why a changed file may make tools of the host run code; None if it cannot.

    Includes what cannot be protected: a repository that a guest created, at any depth.
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
    repositories = (directory, *islice(_find_repositories(directory), _MAX_REPOSITORIES))
    yield from dict.fromkeys(path for place in repositories for path in _find_in_repository(place, directory))


def _find_repositories(top: str) -> Iterator[str]:
    """Repositories below `top`, the nearest first. Links and directories of other owners are not entered.

    A guest may have made very many directories, so the owner is looked up only of those that are listed or yielded.
    """
    level, listed = [top], 0
    for _ in range(_MAX_LEVELS):
        below: list[str] = []
        for directory in islice((path for path in level if _has_same_owner(path, top)), _MAX_LISTED - listed):
            listed += 1
            below += _list_directories(directory)
        level = [path for path in below if os.path.basename(path) not in _NOT_ENTERED]
        yield from (path for path in level if _kind(os.path.join(path, ".git")) and _has_same_owner(path, top))


def _list_directories(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # a guest, with our rights at most, cannot list it either
        return []


def _find_in_repository(directory: str, top: str) -> Iterator[str]:
    git = os.path.join(directory, ".git")
    real, inside = os.path.realpath(git), os.path.realpath(top)
    if _kind(git) == stat.S_IFLNK:  # as created by the tool `repo`
        yield git
        if real.startswith(f"{inside}/") and _kind(os.path.join(real, "HEAD")):
            git = top + real[len(inside) :]
    # In a worktree or a submodule, .git is a file with the path of the real directory. The cage cannot make parts of
    # another owner's directory read-only, so all of it is protected.
    if _kind(git) == stat.S_IFREG or (_kind(git) == stat.S_IFDIR and _owner(git) != _owner(top)):
        yield git
        yield from _find_linked(directory, top)
    elif _kind(git) == stat.S_IFDIR:
        yield from _git_directory(git)
    for path in (*(os.path.join(directory, name) for name in _TOP), *find_named(directory, top)):
        if _kind(path) in (stat.S_IFREG, stat.S_IFDIR):
            yield path


def _find_linked(directory: str, top: str) -> Iterator[str]:
    """The protected paths of the repository to which a file `.git` leads, if that is in `top`.

    Without those that lead into a `.git`, which is searched by itself: they are its worktrees and submodules.
    """
    common, inside = os.path.realpath(_git_places(directory)[1]), os.path.realpath(top)
    below = common[len(inside) :]
    if common.startswith(f"{inside}/") and ".git" not in below.split("/") and _kind(os.path.join(common, "HEAD")):
        if _has_same_owner(common, top):
            yield from _git_directory(top + below, has_commondir=not _is_bare(common))
        else:
            yield top + below


def _is_bare(git: str) -> bool:
    """Whether the configuration says so. With a file `commondir`, git would ignore that."""
    settings = _read_settings(os.path.join(git, "config"))
    return any((section, key, value.lower()) == ("core", "bare", "true") for section, key, value in settings)


def _git_directory(git: str, *, has_commondir: bool = True) -> Iterator[str]:
    """The protected paths of a repository, its worktrees and its submodules."""
    modules = os.path.join(git, "modules")
    if any(_kind(os.path.join(git, name)) == stat.S_IFLNK for name in (*_GIT, "modules", "worktrees")):
        yield git  # nothing can be mounted over a link
        return
    worktrees = _list_directories(os.path.join(git, "worktrees"))
    _create_missing(git, worktrees[:_MAX_SUBMODULES])
    if has_commondir:
        with _refuse_shortage(git):
            _write_commondir(os.path.join(git, "commondir"))
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


def _create_missing(git: str, worktrees: list[str]) -> None:
    """Create the files that a guest could create: only existing files can be made read-only.

    Git reads `config.worktree` if `extensions.worktreeConfig` is set; it may be empty.
    """
    for place in (git, *worktrees):
        with _refuse_shortage(place), open(os.path.join(place, "config.worktree"), "x") as file:
            grant_owner(file.fileno())
    with _refuse_shortage(git):
        make_directory(os.path.join(git, "hooks"), 0o777)


@contextmanager
def _refuse_shortage(git: str) -> Iterator[None]:
    """Ignore what a guest, with our rights at most, cannot do either. A full disk may have room a moment later."""
    try:
        yield
    except OSError as error:
        if is_shortage(error) or error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise host_failure(error, f"protect the configuration of git in {git!r}") from error


def _write_commondir(path: str) -> None:
    """Write the path of the directory of the configuration; "." means the same as no file.

    Git fails on an empty one, which a killed program may have left.
    """
    kind = _kind(path)
    if kind and (kind != stat.S_IFREG or os.lstat(path).st_size):
        return
    flags = _WRITE if kind else _WRITE | os.O_CREAT | os.O_EXCL
    with closing_fd(os.open(path, flags, 0o666)) as file, on_error(lambda: os.unlink(path)):
        grant_owner(file)
        write_all(file, b".\n")


def _find_submodules(directory: str, depth: int) -> Iterator[str]:
    """Find submodules, which are stored by their paths, such as `modules/libs/zlib`."""
    for name in sorted(os.listdir(directory)) if depth and _kind(directory) == stat.S_IFDIR else ():
        path = os.path.join(directory, name)
        if _kind(os.path.join(path, "HEAD")) or _kind(os.path.join(path, "config")):
            yield path
        else:
            yield from _find_submodules(path, depth - 1)


_MAX_CONFIG_BYTES, _MAX_PATH_BYTES, _MAX_FILES, _MAX_HOOKS = 1 << 20, 4096, 10, 100


def find_named(directory: str, top: str) -> list[str]:
    """Paths in `top` that the configuration of the repository in `directory` names, whether they exist or not.

    These are hooks (`core.hooksPath`), included configuration, and the targets of links to either.
    """
    git, common = _git_places(directory)
    hooks = [os.path.join(common, "hooks")]
    files = [os.path.join(common, "config"), os.path.join(git, "config.worktree")]
    for file in files:  # includes are appended meanwhile
        for section, key, value in _read_settings(os.path.realpath(file)):
            if section == "core" and key == "hookspath" and len(hooks) < _MAX_FILES:
                hooks.append(os.path.join(directory, value))
            elif section in ("include", "includeif") and key == "path" and len(files) < _MAX_FILES:
                files.append(os.path.join(os.path.dirname(os.path.realpath(file)), value))
    named = [*hooks, *files]
    for place in hooks:
        with suppress(OSError), os.scandir(place) as entries:
            named += [entry.path for entry in islice(entries, _MAX_HOOKS) if entry.is_symlink()]
    inside = os.path.realpath(top)
    real = dict.fromkeys(os.path.realpath(path) for path in named)
    own = os.path.realpath(os.path.join(directory, ".git"))  # covered by `_git_directory`
    below = [path for path in real if path.startswith(f"{inside}/") and not path.startswith(f"{own}/")]
    return [top + path[len(inside) :] for path in below]


def _git_places(directory: str) -> tuple[str, str]:
    """The directories of a repository with its own state, and with its configuration."""
    git = os.path.join(directory, ".git")
    if (pointer := _read_text(git)).startswith("gitdir:"):
        git = os.path.join(directory, pointer.removeprefix("gitdir:").strip())
    return git, os.path.join(git, _read_text(os.path.join(git, "commondir")).strip() or ".")


def _read_settings(path: str) -> Iterator[tuple[str, str, str]]:
    """Yield section, key and value of each line, section and key in lower case."""
    section = ""
    for line in _read_text(path, _MAX_CONFIG_BYTES).splitlines():
        if line.lstrip().startswith("["):
            head, _, line = line.partition("]")
            section = head.strip(" \t[").split('"')[0].strip().lower()
        key, _, value = line.partition("=")
        value = value.strip()
        quoted = value[1:].partition('"')[0] if value.startswith('"') else value.split("#")[0].split(";")[0].strip()
        if 0 < len(quoted) <= _MAX_PATH_BYTES:
            yield section, key.strip().lower(), os.path.expanduser(quoted)


def _read_text(path: str, size: int = _MAX_PATH_BYTES) -> str:
    """The beginning of a regular file; "" if it cannot be read."""
    try:
        with open(open_regular(path, "path"), "rb") as file:
            return os.fsdecode(file.read(size)).replace("\0", "")
    except (OSError, InvalidRequest):
        return ""


def _path_from(top: str, path: str) -> Iterator[str]:
    """The directories from `top` down to `path`, both included."""
    while len(path) >= len(top):
        yield path
        path = os.path.dirname(path)


def _owner(path: str) -> tuple[int, int]:
    state = os.lstat(path)
    return state.st_uid, state.st_gid


def _has_same_owner(path: str, other: str) -> bool:
    """False if one of them was removed meanwhile."""
    try:
        return _owner(path) == _owner(other)
    except OSError:
        return False


def _kind(path: str) -> int:
    """The file type, or 0 if it does not exist. Links are not followed."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return 0
