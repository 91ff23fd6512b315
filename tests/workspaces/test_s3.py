"""Snapshots in a bucket of a real S3 server on loopback. `scripts/test-cluster` installs it and runs this."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.local_ray import is_cluster_lane
from tests.workspaces.shared_snapshots import share_snapshots

from warmcell import BackendUnavailable
from warmcell.workspaces import WorkspaceStore

pytestmark = pytest.mark.skipif(
    not is_cluster_lane() and not (find_spec("moto") and find_spec("s3fs")), reason="needs the packages moto and s3fs"
)

#: Prints its port, and ends with its standard input.
SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def serve_s3() -> Iterator[int]:
    """The port of a server."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:  # leaving it closes the standard input and waits
        assert process.stdout is not None
        yield int(process.stdout.readline())


def make_options(port: int) -> dict[str, Any]:
    """Of a client that uses no proxy and does not try again."""
    settings = {"proxies": {}, "retries": {"total_max_attempts": 1}}
    return {"endpoint_url": f"http://127.0.0.1:{port}", "key": "any", "secret": "any", "config_kwargs": settings}


def test_two_machines_share_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_s3() as port:
        share_snapshots("s3://bucket/workspaces", make_options(port), tmp_path, monkeypatch)


def test_a_server_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(BackendUnavailable, match=r"in 's3://bucket/workspaces': .*Could not connect"):
            WorkspaceStore("s3://bucket/workspaces", options=make_options(silent.getsockname()[1]))
