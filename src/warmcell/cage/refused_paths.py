"""What the worker noted about its program's last error: the paths that it was refused, NUL between them.

The guest can write this too, so it is read as names, never as orders.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

_MOST_NAMES = 8
_MOST_BYTES = 8192


def read_note(path: str, directory: Optional[int] = None) -> List[List[str]]:
    """Denials for the report. Links, devices and pipes in the note's place are no notes; "" is where none is kept."""
    if not path:
        return []
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return []
    try:
        noted = os.read(descriptor, _MOST_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return []
    finally:
        os.close(descriptor)
    names = [name for name in noted.split(b"\0") if name]
    return [["path", name.decode("utf-8", "replace")] for name in names[:_MOST_NAMES]]
