"""The real `warmcell` command."""

from __future__ import annotations

import subprocess
import sys

COMMAND = [sys.executable, "-m", "warmcell"]


def warmcell(*argv: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *argv], input=stdin, capture_output=True, timeout=60)
