"""The worker's note about its program's last error: the refused paths, separated by NUL.

The guest can write this file too, so it is read as names only.
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
    """Denials for the report. Anything but a regular file is ignored; path "" means no note."""
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
