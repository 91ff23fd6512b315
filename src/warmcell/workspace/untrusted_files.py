"""Opens untrusted files, which must be regular, and parses untrusted JSON of limited depth."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from warmcell.core.errors import InvalidRequest

MAX_JSON_DEPTH = 64


def open_regular(path: str, field: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file without following a final link; a FIFO does not block. The caller owns the descriptor."""
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        fd = os.open(path, flags, mode)
    except OSError as error:
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            raise _not_regular(path, field) from None
        raise InvalidRequest(f"cannot open {path!r}: {(error.strerror or '').lower()}", field=field) from None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise _not_regular(path, field)


def _not_regular(path: str, field: str) -> InvalidRequest:
    return InvalidRequest(f"{path!r} is not a regular file", field=field, hint="copy the content into a regular file")


def parse_json(data: str | bytes) -> Any:
    """Parse JSON of bounded depth. Raises `ValueError`."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            return value
    raise ValueError("nested too deeply")


def load_object(data: str | bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None for anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _children(value: Any) -> list[Any]:
    """The containers in a container."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, dict | list)]
