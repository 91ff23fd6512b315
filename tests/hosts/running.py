"""Runs of the attempt on a host with a condition."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.hosts.conditions import Prefix

ATTEMPT = str(Path(__file__).with_name("attempt.py"))


def on(host: Prefix, *doors: str, cwd: str | None = None, **environment: str) -> dict[str, list[Any]]:
    """What each door answers there."""
    command = [*host, sys.executable, ATTEMPT, *doors]
    environ = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ, cwd=cwd, check=False)
    assert done.returncode == 0, done
    answers: dict[str, list[Any]] = json.loads(done.stdout)
    return answers
