"""Text for models and remote clients: bounded, and without anything of the host in it. Pure module."""

from __future__ import annotations

import re

from warmcell.core.errors import SandboxError
from warmcell.core.lines import one_line

#: Paths inside the cage, which reveal nothing. Not /tmp: the host has one too, and our own errors mean that one.
_GUEST_ROOTS = ("/code", "/out", "/work", "/workspace", "/home/sandbox", "/dev", "/proc/self", "/bin")
#: Our messages quote names as Python does, so a path with spaces ends at its quotation mark.
_QUOTED_PATH = re.compile(r"(['\"])(~?/[^'\"]*)\1")
#: The directory of one run, in classes that share the host's root; and where artefacts are stored.
_RUN_DIRECTORY = re.compile(r"/warmcell-[a-z0-9_]{8}(?=/(?:code|work|tmp|out)\b)")
_ARTEFACT_DIRECTORY = re.compile(r"/warmcell/builds/[0-9a-f]{64}(?=/)")
_LONGEST_PATH = 4096
_LONGEST_MESSAGE = 8000
_PATH = re.compile(r"(?<![\w/.~])(?:~|/)(?:[^\s:;,'\"()<>|]*[^\s:;,'\"()<>|.])?")
_WINDOWS_PATH = re.compile(r"\b[A-Za-z]:\\[^\s'\"<>|]+")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
_ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?!\w|\.\d)")
#: The length of the scheme is bounded: each letter of a long word with hyphens may begin one.
_URL = re.compile(r"\b[a-z][a-z0-9+.-]{0,30}://\S+", re.IGNORECASE)


def cap(text: str, limit: int) -> tuple[str, bool]:
    """`text` in at most about `limit` characters, and whether it was cut. Head and tail stay: errors are at the end."""
    safe = text.encode("utf-8", "replace").decode("utf-8")
    if len(safe) <= limit:
        return safe, False
    head = limit // 2
    tail = limit - head
    left_out = len(safe) - head - tail
    return f"{safe[:head]}\n... ({left_out} characters left out) ...\n{safe[-tail:]}", True


def explain(error: SandboxError) -> str:
    """The text of an error for a model: one line, without host paths, addresses or credentials."""
    return one_line(scrub(str(error)[:_LONGEST_MESSAGE]))


def in_guest_terms(text: str) -> str:
    """A guest's output with the directories of its run named as in a cage (`/code`, `/work`, `/out`)."""
    return _rename_directories(_rename_directories(text, _RUN_DIRECTORY, ""), _ARTEFACT_DIRECTORY, "/out")


def _rename_directories(text: str, directory: re.Pattern[str], name: str) -> str:
    """Replaces such directories and the path before each, found by scanning backwards: a pattern for "any path, then
    this" would take quadratic time on output that consists of slashes.
    """
    pieces, position = [], 0
    for match in directory.finditer(text):
        start = match.start()
        earliest = max(position, start - _LONGEST_PATH)
        while start > earliest and (text[start - 1].isalnum() or text[start - 1] in "/._-+@"):
            start -= 1
        pieces += [text[position:start], name]
        position = match.end()
    return "".join(pieces) + text[position:]


def scrub(text: str) -> str:
    """`text` with placeholders for host paths, credentials and addresses."""
    without_secrets = _CREDENTIALS.sub("", text)
    pieces: list[str] = []
    position = 0
    for url in _URL.finditer(without_secrets):  # a URL's path is not a path of this host
        pieces += [_scrub_paths(without_secrets[position : url.start()]), _ADDRESS.sub("<address>", url.group())]
        position = url.end()
    pieces.append(_scrub_paths(without_secrets[position:]))
    return "".join(pieces)


def _scrub_paths(text: str) -> str:
    quoted = _QUOTED_PATH.sub(lambda match: f"{match[1]}{_display_path(match[2])}{match[1]}", text)
    bare = _PATH.sub(lambda match: _display_path(match.group()), quoted)
    return _ADDRESS.sub("<address>", _WINDOWS_PATH.sub("<path>", bare))


def _display_path(path: str) -> str:
    is_guest = any(path == root or path.startswith(root + "/") for root in _GUEST_ROOTS)
    return path if path == "/" or (is_guest and ".." not in path) else "<path>"
