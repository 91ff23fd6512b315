"""Commands on unusual hosts: `serve` stops at the start where no cage can be made, and `doctor` compiles nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import require
from tests.hosts import conditions


def run_command(*words: str, host: conditions.Prefix = (), **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*host, sys.executable, "-m", "warmcell", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "WARMCELL_ENFORCER": "", **environment},
        check=False,
    )


@pytest.mark.needs("linux", "user namespaces")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_stops_at_the_start_where_no_cage_can_be_made(workers: str) -> None:
    """It would answer every request with 500 and be ready all the same."""
    ended = run_command("serve", "--port", "0", "--workers", workers, host=conditions.SWITCHED_OFF)
    assert (ended.returncode, ended.stdout) == (125, "")
    assert "error: " in ended.stderr and "max_user_namespaces" in ended.stderr and "hint: " in ended.stderr


@pytest.mark.needs("linux", "user namespaces")
def test_doctor_does_not_compile_the_library_of_go(tmp_path: Path) -> None:
    """That takes a minute; it is done when Go is first used."""
    require(shutil.which("go", path=os.environ["PATH"] + ":/usr/local/go/bin"), "this host has no Go")
    found = run_command("doctor", "--json", XDG_CACHE_HOME=str(tmp_path))
    assert "compiled when Go is first used" in json.dumps(json.loads(found.stdout))
    assert not (tmp_path / "warmcell" / "go").exists()


@pytest.mark.needs("linux", "user namespaces")
def test_a_removed_environment_is_named(tmp_path: Path) -> None:
    """The interpreter of a program whose virtual environment was removed while it ran."""
    code = (
        "import os, shutil, sys\n"
        "from warmcell import ExecRequest, ProcessBackend, ProcessConfig, errors\n"
        "shutil.rmtree(sys.argv[1])\n"
        "try:\n"
        "    with ProcessBackend(ProcessConfig(python_path=sys.argv[1] + '/bin/python')) as backend:\n"
        "        backend.execute_blocking(ExecRequest('python', 'print(1)', 20))\n"
        "except errors.SandboxError as error: print(error)\n"
    )
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    ended = subprocess.run(
        [sys.executable, "-c", code, str(environment)], capture_output=True, text=True, timeout=120, check=False
    )
    assert str(environment) in ended.stdout and "TMPDIR" not in ended.stdout, ended
