"""Starts servers on a socket of the test's own, so that the next one has the same address."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.serve.conftest import ROOT

#: Passes descriptor 3, as systemd does, and becomes the server.
START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=sys.argv[2])
os.execv(sys.executable, [sys.executable, "-m", "warmcell", "serve", *sys.argv[3:]])
"""


@contextmanager
def start(listening: socket.socket, *options: str, count: int = 1) -> Iterator[subprocess.Popen[str]]:
    """A server with these options. It is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(listening.fileno()), str(count), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        pass_fds=[listening.fileno()],
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)
