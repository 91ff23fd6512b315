"""The environment of what we start: of guests unless told otherwise. Pure module, and next to nothing to load."""

from __future__ import annotations

HOME_DIR = "/home/sandbox"

CAGED_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME_DIR,
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "EMAIL": "sandbox@localhost",  # with it and the name in /etc/passwd, git needs no identity for a first commit
}

#: In the environment of whatever we start as an interpreter. Who finds it when importing `warmcell` was started in an
#: interpreter's place, and ends (see `warmcell/__init__.py`).
CHILD_MARK = "WARMCELL_CHILD"
