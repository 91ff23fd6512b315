"""Every example runs as its page says, and prints what it is about."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import has_user_namespaces, require

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {
    "coding_agent.py --commit": ["committed: stats.py", "left out: .git/hooks/pre-commit", "/ len(values)"],
    "coding_agent.py": ["modified: stats.py", "on disk: return sum(values) / (len(values) + 1)"],
    "data_analyst.py": ["plot: plot-2-0.svg", "revenue: ", "if prices rise by 2: "],
    "evaluation.py --problems 9 --samples 2": ["'accepted': 16", "pass@1: 0.889", "pass@2: 1.000"],
    "rl_rollouts.py --sandboxes 4": ["4 rollouts", "mean reward "],
    "web_service.py --demo": ["'stdout': '42\\n'", "192.0.2.1:80", "sandbox.timeout"],
    "mcp_editor.py": ["run_command: exit_code 1", "run_command: exit_code 0"],
}


def run(command: list[str], directory: Path, **environment: str) -> str:
    own = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    done = subprocess.run(command, cwd=directory, env=own, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_tried_and_listed() -> None:
    found = {path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".sh", ".ipynb")}
    elsewhere = {"notebook.ipynb"}  # tests/jupyter/test_example.py
    assert found == {name.split()[0] for name in EXAMPLES} | {"team_server.sh"} | elsewhere
    page = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    assert [name for name in found if f"]({name})" not in page] == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example(example: str, tmp_path: Path) -> None:
    require(has_user_namespaces(), "this host has no user namespaces")
    name, *options = example.split()
    printed = run([sys.executable, str(ROOT / "examples" / name), *options], tmp_path)
    assert [part for part in EXAMPLES[example] if part not in printed] == [], printed


def test_the_server_for_a_team(tmp_path: Path) -> None:
    require(has_user_namespaces(), "this host has no user namespaces")
    require(shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"), "nginx is not installed")
    require(shutil.which("curl"), "curl is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [str(ROOT / "examples/team_server.sh"), str(tmp_path / "team"), port, "--check"]
    printed = run(command, tmp_path, WARMCELL=f"{sys.executable} -m warmcell")
    assert '"stdout":"42\\n"' in printed and '"name":"ben"' in printed and "audited" in printed
