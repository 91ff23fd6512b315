"""The default environment of guests and of our own processes. Pure module, quick to load."""

from __future__ import annotations

HOME_DIR = "/home/sandbox"

CAGED_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME_DIR,
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "EMAIL": "sandbox@localhost",  # lets git commit without a configured identity
}

#: Set for every interpreter that we start. A program that imports `warmcell` with it set was mistaken for an
#: interpreter, and exits (see `warmcell/__init__.py`).
CHILD_MARK = "WARMCELL_CHILD"

#: Put before a guest's variables for the loader (LD_...) where our own interpreter starts with the guest's environment:
#: they may name directories that guests write to.
GUEST_MARK = "WARMCELL_GUEST_"
