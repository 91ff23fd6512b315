"""Finds the changes by comparing every entry of the upper directory with the host's directory.

Flags changes that could make the host execute something later (`flags.toml`), and links that lead out.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from warmcell.changes import content
from warmcell.changes.base import Base, Bases
from warmcell.changes.model import Change, ChangeKind, Entry
from warmcell.changes.upper import Found, FoundKind, UpperDirectory, is_whiteout
from warmcell.core.errors import PathTraversal
from warmcell.core.light import Closing, closing_fd
from warmcell.workspace.errors import WorkspaceError
from warmcell.workspace.names import Parts
from warmcell.workspace.protected_paths import find_named
from warmcell.workspace.root import Root
from warmcell.workspace.walk import Descent, kind_of, open_file_at

#: With more added and deleted files than this, renames are not detected.
_MOST_RENAMES = 2000


@dataclass(frozen=True, slots=True)
class Detected:
    """A change, and the facts needed to commit it."""

    change: Change
    parts: Parts
    kind: FoundKind
    mode: int = 0
    old_parts: Parts | None = None
    #: Whether the kernel copied it from the host's directory.
    was_below: bool = False
    #: The target of a link when it was checked: a running guest may replace it before the commit.
    target: str = ""


class Lower(Closing):
    """The host's directory. Consecutive accesses to neighbouring paths are cheap."""

    def __init__(self, root: Root) -> None:
        self._descent = Descent(root)
        self.close = self._descent.close

    def stat(self, parts: Parts) -> os.stat_result | None:
        """None if it does not exist, or if a parent is a link or a file."""
        try:
            return os.stat(parts[-1], dir_fd=self._descent.enter(parts[:-1]), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError, PathTraversal, WorkspaceError):
            return None

    def open(self, parts: Parts) -> int | None:
        """Open a regular file for reading; the caller closes it."""
        try:
            return open_file_at(self._descent.enter(parts[:-1]), parts[-1])
        except (OSError, PathTraversal, WorkspaceError):
            return None

    def read_link(self, parts: Parts) -> str:
        return os.readlink(parts[-1], dir_fd=self._descent.enter(parts[:-1]))

    def names(self, parts: Parts) -> list[str]:
        return os.listdir(self._descent.enter(parts))


class Detector:
    """Detects all changes once, and records the bases of new ones.

    `set_back_ns`: how far the clock was set back since the start.
    """

    def __init__(
        self, upper: UpperDirectory, lower: Lower, bases: Bases, start_ns: int, path: str, set_back_ns: int = 0
    ) -> None:
        self._upper, self._lower, self._bases = upper, lower, bases
        self._start_ns, self._path, self._set_back_ns = start_ns - set_back_ns, path, set_back_ns
        self._named = {tuple(named[len(path) + 1 :].split("/")) for named in find_named(path, path)}
        #: Names in the upper directory that this detection has found so far, by directory.
        self._listed: Mapping[Parts, set[str]] = {}

    def detect(self) -> list[Detected]:
        found: list[Detected] = []
        children: defaultdict[Parts, set[str]] = defaultdict(set)
        self._listed = children
        hidden: list[Parts] = []
        directories: list[tuple[Found, Detected]] = []
        for entry in self._upper.entries():
            children[entry.parts[:-1]].add(entry.name)
            if entry.is_opaque:
                hidden.append(entry.parts)
            try:
                detected = self._compare(entry)
            except OSError:  # a running guest removed or replaced it; the next detection sees the result
                continue
            if detected is not None and entry.kind == "directory":
                directories.append((entry, detected))
            elif detected is not None:
                found.append(detected)
        # A new directory is reported only if it is empty.
        found += [item for entry, item in directories if item.change.kind != "added" or not children[entry.parts]]
        for parts in hidden:
            found += self._list_covered(parts, children[parts])
        return sorted(self._pair_renames(found), key=lambda item: (item.parts, item.kind != "deleted"))

    def _list_covered(self, parts: Parts, shown: set[str]) -> Iterator[Detected]:
        """The host's entries that an opaque directory hides count as deleted."""
        state = self._lower.stat(parts)
        if state is None or not stat.S_ISDIR(state.st_mode):
            return
        for name in self._lower.names(parts):
            below = self._lower.stat((*parts, name))
            if name not in shown and below is not None:
                yield self._describe_deletion((*parts, name), below)

    def _compare(self, entry: Found) -> Detected | None:
        below = self._lower.stat(entry.parts)
        if entry.kind == "deleted":
            return None if below is None else self._describe_deletion(entry.parts, below)
        if entry.kind in ("other", "closed"):
            return self._describe(entry, "added" if below is None else "modified")
        kind = self._kind_of_change(entry, below)
        return None if kind is None else self._describe(entry, kind)

    def _kind_of_change(self, entry: Found, below: os.stat_result | None) -> ChangeKind | None:
        if below is None:
            base = self._bases.get(entry.parts)
            return None if base is not None and self._is_base(entry, base) else "added"
        if kind_of(below.st_mode) != entry.kind:
            return "modified"
        if entry.kind == "symlink":
            return None if self._lower.read_link(entry.parts) == read_link(entry) else "modified"
        is_same_mode = stat.S_IMODE(below.st_mode) & 0o777 == stat.S_IMODE(entry.state.st_mode) & 0o777
        if entry.kind == "file" and not self._is_same_file(entry, below, is_same_mode):
            return "modified"
        base = self._bases.get(entry.parts) if entry.kind == "file" else None
        is_mode_of_base = base is not None and base.permissions == stat.S_IMODE(entry.state.st_mode) & 0o777
        return None if is_same_mode or is_mode_of_base else "mode"

    def _is_same_file(self, entry: Found, below: os.stat_result, is_same_mode: bool) -> bool:
        """Whether the guest's file equals the host's, or its base: then only the host changed it."""
        theirs = self._lower.open(entry.parts)
        ours = open_file_at(entry.dir_fd, entry.name)
        try:
            if theirs is None or ours is None:
                return False
            is_same = content.is_same(ours, theirs)
            if is_same and is_same_mode:
                return True
            base = self._bases.get(entry.parts)
            if base is None and below.st_ctime_ns <= max(self._start_ns, entry.copied_ns - 1 - self._set_back_ns):
                self._bases.record(entry.parts, theirs)
            return is_same or (base is not None and bool(base.digest) and base.digest == content.digest(ours))
        finally:
            close(theirs, ours)

    def _is_base(self, entry: Found, base: Base) -> bool:
        """Whether the guest's file equals its base: it was committed, and then deleted on the host."""
        if entry.kind == "symlink":
            return base.digest == read_link(entry)
        ours = open_file_at(entry.dir_fd, entry.name) if entry.kind == "file" else None
        try:
            return ours is not None and bool(base.digest) and base.digest == content.digest(ours)
        finally:
            close(ours)

    def _describe_deletion(self, parts: Parts, below: os.stat_result) -> Detected:
        if below.st_ctime_ns <= self._start_ns and stat.S_ISREG(below.st_mode) and self._bases.get(parts) is None:
            fd = self._lower.open(parts)
            if fd is not None:
                with closing_fd(fd):
                    self._bases.record(parts, fd)
        kind = kind_of(below.st_mode)
        size = below.st_size if kind == "file" else 0
        reason = flag_reason(parts) or self._flag_named(parts)
        return Detected(_change(parts, "deleted", kind, size, reason), parts, "deleted", below.st_mode)

    def _describe(self, entry: Found, kind: ChangeKind) -> Detected:
        reason = flag_reason(entry.parts, is_link=entry.kind == "symlink", has_name=self._has_name)
        reason = reason or self._flag_named(entry.parts)
        target = read_link(entry) if entry.kind == "symlink" else ""
        if target and reason is None and self._leads_out(entry.parts, target):
            reason = LEADS_OUT
        shown: Entry = "file" if entry.kind == "deleted" else entry.kind
        size = entry.state.st_size if entry.kind == "file" else 0
        change = _change(entry.parts, kind, shown, size, reason)
        was_below = bool(entry.copied_ns)
        return Detected(change, entry.parts, entry.kind, entry.state.st_mode, was_below=was_below, target=target)

    def _flag_named(self, parts: Parts) -> str | None:
        """Parents of a path that git's configuration names count too: a link may replace them."""
        is_named = any(parts[: len(named)] == named or named[: len(parts)] == parts for named in self._named)
        return _NAMED_BY_GIT if is_named else None

    def _has_name(self, parts: Parts) -> bool:
        """Whether the path exists on the host or in the guest's changes.

        One that was listed counts, too: a running guest may hide it while the other half of a repository is looked at.
        """
        if parts[-1] in self._listed.get(parts[:-1], ()) or self._lower.stat(parts) is not None:
            return True
        try:
            with self._upper.root.parent(parts) as (dir_fd, name):
                return not is_whiteout(os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
        except (OSError, PathTraversal, WorkspaceError):
            return False

    def _leads_out(self, parts: Parts, target: str) -> bool:
        def is_link(parts: Parts) -> bool:
            state = self._lower.stat(parts)
            return state is not None and stat.S_ISLNK(state.st_mode)

        return is_leading_out(parts, target, is_link, self._path)

    def _pair_renames(self, found: list[Detected]) -> list[Detected]:
        """A deleted and an added file with the same content are one renamed file."""
        gone = [item for item in found if item.kind == "deleted" and item.change.entry == "file"]
        new = [item for item in found if item.change.kind == "added" and item.kind == "file"]
        sizes = {item.change.size for item in gone} & {item.change.size for item in new} - {0}
        if not sizes or len(gone) + len(new) > _MOST_RENAMES:
            return found
        by_digest: dict[str, Detected] = {}
        for item in gone:
            if item.change.size in sizes and (digest := self._digest(self._lower.open(item.parts))):
                by_digest.setdefault(digest, item)
        renames: dict[Parts, Detected] = {}
        for item in new:
            digest = self._digest(open_upper(self._upper, item.parts)) if item.change.size in sizes else ""
            if digest and (old := by_digest.pop(digest, None)) is not None:
                renames[item.parts] = old
        return list(_with_renames(found, renames))

    @staticmethod
    def _digest(fd: int | None) -> str:
        try:
            return "" if fd is None else content.digest(fd)
        finally:
            close(fd)


def _with_renames(found: Iterable[Detected], renames: dict[Parts, Detected]) -> Iterator[Detected]:
    gone = {old.parts for old in renames.values()}
    for item in found:
        old = renames.get(item.parts) if item.kind != "deleted" else None
        if old is not None:
            reason = item.change.flag_reason or old.change.flag_reason
            change = replace(item.change, kind="renamed", old_path=old.change.path)
            change = replace(change, is_flagged=reason is not None, flag_reason=reason)
            yield replace(item, change=change, old_parts=old.parts)
        elif item.kind != "deleted" or item.parts not in gone:
            yield item


def _change(parts: Parts, kind: ChangeKind, entry: Entry, size: int, reason: str | None) -> Change:
    return Change("/".join(parts), kind, None, reason is not None, reason, entry, size)


def read_link(entry: Found) -> str:
    return os.readlink(entry.name, dir_fd=entry.dir_fd)


def open_upper(upper: UpperDirectory, parts: Parts) -> int | None:
    """Open a regular file of the upper directory for reading."""
    try:
        with upper.root.parent(parts) as (dir_fd, name):
            return open_file_at(dir_fd, name)
    except (OSError, PathTraversal, WorkspaceError):
        return None


def close(*descriptors: int | None) -> None:
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)


#: Code points that some file systems ignore in names (CVE-2014-9390 of git).
_IGNORED = dict.fromkeys((*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF))
_TABLE = os.path.join(os.path.dirname(__file__), "flags.toml")

_NAMED_BY_GIT = "git on the host runs this, or reads it, because its configuration or a link in its directory names it"
_GIT_BY_CONTENT = "git on the host treats this directory as a repository, and runs what its configuration names"
_GIT_CONFIGURATION = ("config", "config.worktree", "commondir")
LEADS_OUT = "this link leads out of the directory, and tools on the host would follow it"


def flag_reason(parts: Parts, *, is_link: bool = False, has_name: Callable[[Parts], bool] | None = None) -> str | None:
    """Why a change of this path needs approval before it is committed; None if it does not.

    Links that replace a parent of a flagged path are flagged too. `has_name` says whether a path exists: git recognises
    repositories of any name by their file HEAD, and reads the configuration beside it.
    """
    path = "/".join(_plain(name) for name in parts)
    for pattern, reason in (*_patterns(), *(_prefixes() if is_link else ())):
        if pattern.fullmatch(path):
            return reason
    if has_name is not None and _is_of_repository(parts, has_name):
        return _GIT_BY_CONTENT
    return None


def _is_of_repository(parts: Parts, has_name: Callable[[Parts], bool]) -> bool:
    """HEAD and configuration flag each other: they may be committed one after the other."""
    name, directory = _plain(parts[-1]), parts[:-1]
    if name in _GIT_CONFIGURATION:
        return has_name((*directory, "HEAD"))
    if name == "head":
        return any(has_name((*directory, other)) for other in (*_GIT_CONFIGURATION, "hooks"))
    return len(parts) > 1 and _plain(parts[-2]) == "hooks" and has_name((*parts[:-2], "HEAD"))


def _plain(name: str) -> str:
    """The name in the form in which the most tolerant file system compares names."""
    return name.translate(_IGNORED).casefold().rstrip(". ") or name


@cache
def _rows() -> list[tuple[str, str]]:
    with open(_TABLE, "rb") as file:
        return [(pattern, row["reason"]) for row in tomllib.load(file)["flag"] for pattern in row["patterns"]]


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((_compile(pattern), reason) for pattern, reason in _rows())


@cache
def _prefixes() -> tuple[tuple[re.Pattern[str], str], ...]:
    found: dict[str, str] = {}
    for pattern, reason in _rows():
        names = pattern.rstrip("/").split("/")
        found |= {"/".join(names[:count]): reason for count in range(1, len(names))}
    return tuple((_compile(pattern), reason) for pattern, reason in found.items())


def _compile(pattern: str) -> re.Pattern[str]:
    names = pattern.casefold().rstrip("/").split("/")
    inner = "/".join("[^/]*".join(map(re.escape, name.split("*"))) for name in names)
    return re.compile(f"(?:.*/)?{inner}" + ("(?:/.*)?" if pattern.endswith("/") else ""), re.DOTALL)


def is_leading_out(parts: Parts, target: str, is_link: Callable[[Parts], bool], path: str) -> bool:
    """Whether a link at `parts` may lead out of the directory, whose path on the host is `path`.

    Decided without following links: any ".." after the beginning, and any link in the target's path, counts as leading
    out.
    """
    if target.startswith("/"):
        if not (target + "/").startswith(path + "/"):
            return True
        names, here = target[len(path) :].split("/"), []
    else:
        names, here = target.split("/"), list(parts[:-1])
    rest = [name for name in names if name not in ("", ".")]
    while rest and rest[0] == "..":
        if not here:
            return True
        here.pop()
        rest.pop(0)
    way = (*here, *rest)
    return ".." in rest or any(is_link(way[:count]) for count in range(len(here) + 1, len(way) + 1))
