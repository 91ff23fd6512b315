"""Paths that all servers interpret alike. Pure, and linear in the length of the path.

Servers transform a path before they use it: they decode it, sometimes twice, fold Unicode, drop `;parameters` and
trailing blanks and dots, join empty segments, treat a backslash as a slash. A path that any of this could turn into
another one is not plain, and path rules refuse it.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote_to_bytes

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
#: Escaped, these mean different things depending on whether a server splits or decodes first.
_NEVER_ESCAPED = frozenset(b"/\\.;%?#")
#: Some servers strip these, which can leave `.` or `..`.
_DROPPED_AT_THE_ENDS = ". "


def is_plain(path: str) -> bool:
    """Whether every server interprets the path, which must start with a slash, alike."""
    if not path.startswith("/") or "\\" in path or _BAD_ESCAPE.search(path):
        return False
    if any(int(code, 16) in _NEVER_ESCAPED for code in _ESCAPED.findall(path)):
        return False
    try:
        text = unquote_to_bytes(path).decode()  # strict: rejects overlong forms, such as of a dot
    except UnicodeDecodeError:
        return False
    segments = text.split("/")[1:]
    return all(map(_is_plain_character, text)) and all(map(_is_plain_name, segments[:-1])) and _ends_plainly(segments)


def _ends_plainly(segments: list[str]) -> bool:
    """The last segment may be empty: a trailing slash."""
    return segments[-1] == "" or _is_plain_name(segments[-1])


def _is_plain_name(segment: str) -> bool:
    return bool(segment.partition(";")[0].strip(_DROPPED_AT_THE_ENDS))


def _is_plain_character(character: str) -> bool:
    """Printable ASCII, or a letter, digit or mark that stays one in every normal form."""
    if character.isascii():
        return " " <= character <= "~"
    return all(unicodedata.category(form)[0] in "LMN" for form in unicodedata.normalize("NFKC", character) + character)
