"""S2-15: an interpreter that lives in a home or a project shows itself and its libraries, not what lies beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest

from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.host_program import base_executable


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment made in the project's own directory, as some tutorials have it."""
    root = tmp_path_factory.mktemp("project")
    subprocess.run([base_executable() or sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    for name in (".env", ".ssh", "src"):
        (root / name).mkdir()
        (root / name / "secret").write_text("canary")
        (root / name / "secret").chmod(0o644)
    [modules] = root.glob("lib/python*/site-packages")
    (modules / "installed.py").write_text("value = 'from the environment'")
    return root


@pytest.mark.attack("S2-15")
@pytest.mark.claim("WC-FS-1")
@pytest.mark.parametrize("enforcer", ["native", "landlock"])
def test_neighbours_of_an_interpreter_are_not_shown(cage: Cage, project: Path, enforcer: str) -> None:
    config = ProcessConfig(python_path=project / "bin" / "python", pool_size=0, pool_min=0)
    backend = cage.backend(config=config, enforcer=enforcer)
    body = """
        import installed
        print(installed.value, sys.prefix == project)
        for name in ('.env', '.ssh', 'src'):
            attempt(name, lambda: open(project + '/' + name + '/secret').read())
        """
    outcome = cage.run(guest(body, project=str(project)), backend=backend)
    outcome.check_refused()
    assert outcome.stdout.startswith("from the environment True\n")
    assert "canary" not in outcome.everything
