"""Looks up paths and users of an image in its unpacked layers, as overlayfs would show them."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Mapping, Sequence

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass
from warmcell.images.limits import MAX_PATH_BYTES

_MOST_LINKS = 40
#: Looks into a layer in one search, some hundredths of a second. Usual ones take some hundreds.
_MOST_LOOKS = 40_000
_MOST_BYTES = 1 << 20
_OPAQUE = "user.overlay.opaque"


class _Effort:
    """What one search may still cost. The author of an image chooses depths, links, layers and its PATH."""

    def __init__(self) -> None:
        self._left = _MOST_LOOKS

    def take(self, layers: int, depth: int) -> None:
        """Count a look into so many layers. The kernel takes longer for a long path."""
        self._left -= max(1, layers) * (1 + depth // 32)

    @property
    def is_spent(self) -> bool:
        return self._left < 0


class ImageFiles:
    """The merged layers, lowest first. Links are followed inside the image only."""

    def __init__(self, layers: Sequence[str]) -> None:
        self._layers = tuple(reversed(layers))

    def find(self, path: str) -> str | None:
        """The host path of the entry at `path`, with links followed; None if it does not exist."""
        return self._find(path, _Effort())

    def _find(self, path: str, effort: _Effort) -> str | None:
        places = self._locate(path, effort)[1]
        return places[0] if places else None

    def locate(self, path: str) -> tuple[str, list[str]]:
        """The path with links resolved, and the host paths of its entry, topmost layer first.

        A directory has one for each layer that contains it; a missing entry has none, and so has one whose search takes
        too long.
        """
        return self._locate(path, _Effort())

    def _locate(self, path: str, effort: _Effort) -> tuple[str, list[str]]:
        if len(path) > MAX_PATH_BYTES:
            return posixpath.normpath(f"/{path}"), []
        rest = _names_of(path)
        inside, places, links = "/", list(self._layers), 0
        while rest:
            name = rest.pop()
            if name == "..":
                above = posixpath.join(posixpath.dirname(inside), *reversed(rest))
                return self._locate(posixpath.normpath(above), effort)
            effort.take(len(places), inside.count("/"))
            if effort.is_spent:
                return posixpath.join(inside, name, *reversed(rest)), []
            found = topmost(places, name)
            if found and stat.S_ISLNK(os.lstat(found[0]).st_mode) and links < _MOST_LINKS:
                links += 1
                target = posixpath.join(inside, os.readlink(found[0]), *reversed(rest))
                rest = _names_of(posixpath.normpath(target))
                inside, places = "/", list(self._layers)
            else:
                inside = posixpath.join(inside, name)
                places = [] if links == _MOST_LINKS else found
        return inside, places

    def find_program(self, names: Sequence[str], search_path: str) -> str | None:
        """The guest path of the first of these programs that a directory of `search_path` contains."""
        effort = _Effort()
        for name in names:
            for directory in search_path.split(":"):
                path = posixpath.join("/", directory, name)
                found = self._find(path, effort)
                if found is not None and _is_executable(found):
                    return path
                if effort.is_spent:
                    return None
        return None

    def is_directory(self, path: str) -> bool:
        found = self.find(path)
        return found is not None and stat.S_ISDIR(os.lstat(found).st_mode)

    def read_lines(self, path: str) -> list[str]:
        """The lines of a small text file; empty if it is missing."""
        found = self.find(path)
        if found is None or not stat.S_ISREG(os.lstat(found).st_mode):
            return []
        descriptor = os.open(found, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise InvalidRequest(f"{path} of the image is larger than {_MOST_BYTES} bytes", field="image")
        return content.decode("utf-8", "replace").splitlines()


def _names_of(path: str) -> list[str]:
    """The last name first, so that taking the first one takes no time."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def topmost(places: Sequence[str], name: str) -> list[str]:
    """Host paths of an entry: a file in the topmost layer that has it, a directory in each layer that contributes."""
    found: list[str] = []
    for place in places:
        path = os.path.join(place, name)
        try:
            status = os.lstat(path)
        except OSError:  # not in this layer
            continue
        if stat.S_ISCHR(status.st_mode) or (found and not stat.S_ISDIR(status.st_mode)):
            break  # a whiteout, or a file that the directory above it replaced
        found.append(path)
        if not stat.S_ISDIR(status.st_mode) or is_opaque(path):
            break
    return found


def is_opaque(directory: str | int) -> bool:
    """Whether a directory of a layer hides the content of lower layers."""
    try:
        return os.getxattr(directory, _OPAQUE) == b"y"
    except OSError:
        return False


def _is_executable(path: str) -> bool:
    mode = os.lstat(path).st_mode
    return stat.S_ISREG(mode) and bool(mode & 0o111)


_DEFAULT_ID = 1000
_LARGEST_ID = (1 << 32) - 2


@dataclass(frozen=True, slots=True)
class ImageUser:
    """`home` is "" if the image names none."""

    uid: int
    gid: int
    home: str = ""


def find_user(files: ImageFiles, user: str) -> ImageUser:
    """Resolve "name", "uid", "name:group" or "uid:gid"; "" is the cage's default user."""
    name, _, group = user.partition(":")
    accounts = _accounts(files, "/etc/passwd", 7)
    if not name:
        known = _by_number(accounts, str(_DEFAULT_ID))
        return ImageUser(_DEFAULT_ID, _DEFAULT_ID, known[5] if known else "")
    account = accounts.get(name) or (_by_number(accounts, name) if name.isascii() and name.isdigit() else None)
    if account is None and name == "root":
        account = ["root", "", "0", "0", "", "", ""]
    if account is None:
        uid, gid, home = _number(name, "user", f"the image has no user {name!r}"), 0, ""
    else:
        uid, gid, home = _number(account[2]), _number(account[3]), _clean_home(account[5])
    return ImageUser(uid, _find_group(files, group) if group else gid, home)


def _find_group(files: ImageFiles, group: str) -> int:
    found = _accounts(files, "/etc/group", 4).get(group)
    return _number(found[2]) if found else _number(group, "user", f"the image has no group {group!r}")


def _accounts(files: ImageFiles, path: str, fields: int) -> Mapping[str, list[str]]:
    rows = [line.split(":") for line in files.read_lines(path)]
    return {row[0]: row for row in reversed(rows) if len(row) >= fields}


def _by_number(accounts: Mapping[str, list[str]], uid: str) -> list[str] | None:
    wanted = uid.lstrip("0") or "0"
    return next((row for row in accounts.values() if row[2] == wanted), None)


def _number(text: str, field: str = "image", problem: str = "an id in the image's /etc/passwd is not a number") -> int:
    if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _LARGEST_ID:
        return int(text)
    raise InvalidRequest(problem, field=field, hint="name a user of the image's /etc/passwd, or a number")


def _clean_home(path: str) -> str:
    """The normalised path if it is absolute and not the root, else ""."""
    cleaned = posixpath.normpath(path)
    return cleaned if cleaned.startswith("/") and cleaned not in ("/", "//") else ""
