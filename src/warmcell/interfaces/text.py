"""Text that leaves through a door: cut to size, and error text without anything of the host in it. Pure module."""

from __future__ import annotations

import re

from warmcell.core.errors import SandboxError

#: Paths that a guest has in its own world: naming them tells nobody anything.
_GUEST_ROOTS = ("/tmp", "/code", "/out", "/work", "/workspace", "/home/sandbox", "/dev", "/proc/self", "/bin")
_PATH = re.compile(r"(?<![\w/.~])(?:~|/)(?:[^\s:;,'\"()<>|]*[^\s:;,'\"()<>|.])?")
_WINDOWS_PATH = re.compile(r"\b[A-Za-z]:\\[^\s'\"<>|]+")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
_ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?!\w|\.\d)")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)


def cap(text: str, limit: int) -> tuple[str, bool]:
    """`text` in at most about `limit` characters, and whether it was cut. Head and tail stay: errors end a log."""
    safe = text.encode("utf-8", "replace").decode("utf-8")
    if len(safe) <= limit:
        return safe, False
    head = limit // 2
    tail = limit - head
    left_out = len(safe) - head - tail
    return f"{safe[:head]}\n... ({left_out} characters left out) ...\n{safe[-tail:]}", True


def explain(error: SandboxError) -> str:
    """What a model may read of one of our errors: the words, without host paths, addresses or credentials."""
    return scrub(str(error))[:2000]


def scrub(text: str) -> str:
    """`text` with host paths, credentials and addresses replaced by what they were."""
    without_secrets = _CREDENTIALS.sub("", text)
    pieces: list[str] = []
    position = 0
    for url in _URL.finditer(without_secrets):  # a URL's path is not a path of this host
        pieces += [_scrub_paths(without_secrets[position : url.start()]), _ADDRESS.sub("<address>", url.group())]
        position = url.end()
    pieces.append(_scrub_paths(without_secrets[position:]))
    return "".join(pieces)


def _scrub_paths(text: str) -> str:
    return _ADDRESS.sub("<address>", _WINDOWS_PATH.sub("<path>", _PATH.sub(_shown_path, text)))


def _shown_path(match: re.Match[str]) -> str:
    path = match.group()
    is_guest = any(path == root or path.startswith(root + "/") for root in _GUEST_ROOTS)
    return path if path == "/" or (is_guest and ".." not in path) else "<path>"
