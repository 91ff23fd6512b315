"""Joining a cluster that the command `ray start` made, as `docs/cluster.md` describes."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import PATIENCE, until

#: Ray starts a dozen processes; on a busy machine that takes a minute.
START_SECONDS = 4 * PATIENCE
START = "--head --block --port=0 --num-cpus=1 --include-dashboard=false --object-store-memory=100000000"


@pytest.fixture
def head() -> Iterator[dict[str, str]]:
    """The environment of a program that may join a head with a token of its own."""
    place = Path(tempfile.mkdtemp(prefix="wr", dir="/tmp"))  # short, for the paths of sockets
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = {**os.environ, **token, "RAY_TMPDIR": str(place)}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *START.split()]
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    address = place / "ray/ray_current_cluster"
    try:
        until(lambda: process.poll() is not None or (address.exists() and address.read_text()), START_SECONDS)
        assert process.poll() is None, (place / "log").read_text()
        yield {**environment, "RAY_ADDRESS": address.read_text()}
    finally:
        process.terminate()  # ends the processes that it started
        process.wait(START_SECONDS)
        shutil.rmtree(place, ignore_errors=True)


def run(environment: dict[str, str]) -> str:
    command = [sys.executable, "-m", "warmcell", "run", "--backend", "ray", "python", "-c", "print(6 * 7)"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(20 * PATIENCE, method="signal")
def test_the_command_joins_a_cluster_at_an_address_and_the_one_of_this_host(head: dict[str, str]) -> None:
    assert run(head) == "42\n"
    assert run({name: value for name, value in head.items() if name != "RAY_ADDRESS"}) == "42\n"
