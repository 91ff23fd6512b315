"""S3-14: what the host's git replaces at a bad moment, while a command of the toolbox runs or a cage is being made."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.helpers import require

from warmcell import ExecutionFailed, Sandbox

pytestmark = [
    pytest.mark.needs("linux"), pytest.mark.needs("user namespaces"), pytest.mark.attack("S3-14")
]  # fmt: skip
#: A guest that waits until it may write there.
WAIT_AND_WRITE = (
    "touch ready; until [ -e begin ]; do sleep 0.01; done; sleep 5; echo '[evil]' >> .git/config; echo done > late"
)


def git(repository: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(repository), *words], check=True, capture_output=True, timeout=60)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    return tmp_path


def test_a_command_of_the_toolbox_ends_when_the_host_replaces_it(repository: Path) -> None:
    """Its directory is mounted into a running cage, whose manager must watch it as well."""
    with Sandbox(repository, backend="wasm", timeout=60) as sandbox, ThreadPoolExecutor(1) as pool:
        require(sandbox.sh("true").enforced.isolation_class == "wasm+process", "this host has no cage for workers")
        running = pool.submit(sandbox.sh, WAIT_AND_WRITE)
        until = time.monotonic() + 30
        while not (repository / "ready").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        git(repository, "config", "branch.main.description", "x")
        (repository / "begin").touch()
        with pytest.raises(ExecutionFailed, match=r"the host replaced '\.git/config'"):
            running.result(60)
        assert sandbox.sh("echo two").stdout == "two\n"
    assert "evil" not in (repository / ".git/config").read_text() and not (repository / "late").exists()
