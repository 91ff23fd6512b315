"""The users of an image, from its /etc/passwd and /etc/group."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass
from warmcell.images.image_files import ImageFiles

_USUAL_ID = 1000
_LARGEST_ID = (1 << 32) - 2


@dataclass(frozen=True, slots=True)
class ImageUser:
    """`home` is "" if the image names none."""

    uid: int
    gid: int
    home: str = ""


def find_user(files: ImageFiles, user: str) -> ImageUser:
    """The user that an image or a caller names: "", "name", "uid", "name:group" or "uid:gid". "": the cage's usual."""
    name, _, group = user.partition(":")
    accounts = _accounts(files, "/etc/passwd", 7)
    if not name:
        known = _by_number(accounts, str(_USUAL_ID))
        return ImageUser(_USUAL_ID, _USUAL_ID, known[5] if known else "")
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
    """An absolute path that is not the root; else none."""
    cleaned = posixpath.normpath(path)
    return cleaned if cleaned.startswith("/") and cleaned not in ("/", "//") else ""
