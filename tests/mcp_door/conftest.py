"""The server as users start it, and the SDK's own client to drive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

if os.environ.get("WARMCELL_MUST_WORK") == "1":
    import mcp  # noqa: F401
else:
    pytest.importorskip("mcp")

COMMAND = [sys.executable, "-m", "warmcell", "mcp"]


def processes_with(marker: str) -> list[int]:
    """Processes of this host whose command line holds the marker, without this one."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                is_marked = marker.encode() in file.read()
        except OSError:
            continue
        if is_marked and int(name) != os.getpid():
            found.append(int(name))
    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """One server over HTTP for all tests of a file."""
    command = [*COMMAND, "--http", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    yield server.stdout.readline().strip()
    server.send_signal(signal.SIGTERM)
    server.wait(60)
    server.stdout.close()
