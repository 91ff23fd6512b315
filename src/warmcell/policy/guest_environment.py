"""The environment of a guest unless told otherwise. Pure module, and next to nothing to load."""

from __future__ import annotations

HOME_DIR = "/home/sandbox"

CAGED_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME_DIR,
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "EMAIL": "sandbox@localhost",  # with it and the name in /etc/passwd, git needs no identity for a first commit
}
