"""Paths that every server reads alike. Pure, and linear in the length of the path.

Under a path rule a request is judged by its path, and servers do much to one before they use it: they decode it, some
twice, fold Unicode, drop `;parameters`, blanks and dots at the end of a name, join empty segments, take a backslash for
a slash. What any of that could turn into another path is not plain, and a path rule refuses it.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote_to_bytes

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
#: Escaped, these are one thing to who decodes before splitting and another to who splits before decoding.
_NEVER_ESCAPED = frozenset(b"/\\.;%?#")
#: What is left of a name that is nothing but `.` or `..` to somebody.
_DROPPED_AT_THE_ENDS = ". "


def is_plain(path: str) -> bool:
    """Whether the path, which begins with a slash, means the same to everybody."""
    if not path.startswith("/") or "\\" in path or _BAD_ESCAPE.search(path):
        return False
    if any(int(code, 16) in _NEVER_ESCAPED for code in _ESCAPED.findall(path)):
        return False
    try:
        text = unquote_to_bytes(path).decode()  # strict: an overlong form of a dot is no UTF-8
    except UnicodeDecodeError:
        return False
    segments = text.split("/")[1:]
    return all(map(_is_plain_character, text)) and all(map(_is_plain_name, segments[:-1])) and _ends_plainly(segments)


def _ends_plainly(segments: list[str]) -> bool:
    """The last segment may be empty: a slash at the end."""
    return segments[-1] == "" or _is_plain_name(segments[-1])


def _is_plain_name(segment: str) -> bool:
    return bool(segment.partition(";")[0].strip(_DROPPED_AT_THE_ENDS))


def _is_plain_character(character: str) -> bool:
    """Printable ASCII, or a letter, digit or mark that stays one in every normal form."""
    if character.isascii():
        return " " <= character <= "~"
    return all(unicodedata.category(form)[0] in "LMN" for form in unicodedata.normalize("NFKC", character) + character)
