"""The default environment of guests and of our own processes. Pure module, quick to load."""

from __future__ import annotations

HOME_DIR = "/home/sandbox"

CAGED_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME_DIR,
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "EMAIL": "sandbox@localhost",  # with it and the name in /etc/passwd, git needs no identity for a first commit
}

#: Set for every interpreter that we start. A program that finds it when it imports `warmcell` was started in place of
#: an interpreter, and exits (see `warmcell/__init__.py`).
CHILD_MARK = "WARMCELL_CHILD"
