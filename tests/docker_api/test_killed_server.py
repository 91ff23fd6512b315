"""A server that is killed takes the builds with it that it started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docker_api.conftest import ROOT
from tests.helpers import until
from tests.image_roots import make_busybox

from warmcell.cage.linux.processes import descendants
from warmcell.policy.model import SandboxPolicy


@pytest.mark.attack("S2-21")
@pytest.mark.needs("user namespaces")
def test_a_build_ends_with_its_server(tmp_path: Path) -> None:
    """The kernel closes the pipes of a killed server. The command prints nothing, so it would not notice."""
    make_busybox(tmp_path)
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM busybox:1\nRUN echo begin; exec sleep 1000\n")
    job = {
        "store": str(tmp_path / "store"),
        "context": str(context),
        "dockerfile": "Dockerfile",
        "names": ["built:1"],
        "build_args": {},
        "target": "",
        "policy": SandboxPolicy(allow_process_spawn=True).to_json(),
        "uses_cache": True,
    }
    command = [sys.executable, "-m", "warmcell.interfaces.docker.build_process"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
            while b"begin" not in (line := process.stdout.readline()) or b"Step" in line:
                assert line, "the build ended early"
            started = descendants(process.pid)
            assert started
            process.stdin.close()
            until(lambda: process.poll() is not None and not any(map(_is_alive, started)))
        finally:
            process.kill()


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
