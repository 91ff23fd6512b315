"""Which changes could make the host execute something later: the table `flags.toml`, and links that lead out."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Sequence
from functools import cache

from warmcell.workspace.names import Parts

#: Code points that some file systems ignore in names: git has been deceived by them.
_IGNORED = dict.fromkeys((*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF))
_TABLE = os.path.join(os.path.dirname(__file__), "flags.toml")

_GIT_BY_CONTENT = "git on the host takes this directory for a repository, and runs what its configuration names"
_GIT_CONFIGURATION = ("config", "config.worktree", "commondir")
LEADS_OUT = "it is a link that leads out of the directory, and tools of the host would follow it"


def flag_reason(parts: Parts, *, is_link: bool = False, has_name: Callable[[Parts], bool] | None = None) -> str | None:
    """Why a change of this path needs a look before it is committed; None if it does not.

    A link must not stand for a directory above a flagged path either. `has_name` says whether there is something at a
    path: git recognises repositories of any name by their file HEAD, and obeys the configuration beside it.
    """
    path = "/".join(_plain(name) for name in parts)
    for pattern, reason in (*_patterns(), *(_prefixes() if is_link else ())):
        if pattern.fullmatch(path):
            return reason
    if has_name is not None and _is_of_repository(parts, has_name):
        return _GIT_BY_CONTENT
    return None


def _is_of_repository(parts: Parts, has_name: Callable[[Parts], bool]) -> bool:
    """Either half of a repository is flagged where the other one is: they may be committed one after the other."""
    name, directory = _plain(parts[-1]), parts[:-1]
    if name in _GIT_CONFIGURATION:
        return has_name((*directory, "HEAD"))
    if name == "head":
        return any(has_name((*directory, other)) for other in (*_GIT_CONFIGURATION, "hooks"))
    return len(parts) > 1 and _plain(parts[-2]) == "hooks" and has_name((*parts[:-2], "HEAD"))


def _plain(name: str) -> str:
    """As the most forgiving file system compares names."""
    return name.translate(_IGNORED).casefold().rstrip(". ") or name


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    with open(_TABLE, "rb") as file:
        rows = tomllib.load(file)["flag"]
    return tuple((_compile(pattern), row["reason"]) for row in rows for pattern in row["patterns"])


@cache
def _prefixes() -> tuple[tuple[re.Pattern[str], str], ...]:
    with open(_TABLE, "rb") as file:
        rows = tomllib.load(file)["flag"]
    found: dict[str, str] = {}
    for row in rows:
        for pattern in row["patterns"]:
            names = pattern.rstrip("/").split("/")
            found |= {"/".join(names[:count]): row["reason"] for count in range(1, len(names))}
    return tuple((_compile(pattern), reason) for pattern, reason in found.items())


def _compile(pattern: str) -> re.Pattern[str]:
    names = pattern.casefold().rstrip("/").split("/")
    inner = "/".join("[^/]*".join(map(re.escape, name.split("*"))) for name in names)
    return re.compile(f"(?:.*/)?{inner}" + ("(?:/.*)?" if pattern.endswith("/") else ""), re.DOTALL)


def is_leading_out(parts: Parts, target: str, is_link: Callable[[Parts], bool], path: str) -> bool:
    """Whether a link at `parts` may lead out of the directory, whose path on the host is `path`.

    Strict: ".." only at the beginning, and no link on the way, so that nothing needs to be followed to know.
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
    return ".." in rest or _passes_link((*here, *rest), len(here), is_link)


def _passes_link(parts: Sequence[str], known: int, is_link: Callable[[Parts], bool]) -> bool:
    return any(is_link(tuple(parts[:count])) for count in range(known + 1, len(parts) + 1))
