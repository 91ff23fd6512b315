"""S3-14: the host's git replaces its configuration while a cage that must protect it is being made."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from warmcell import Sandbox
from warmcell.pool.pool import Pool

pytestmark = [
    pytest.mark.needs("linux"), pytest.mark.needs("user namespaces"), pytest.mark.attack("S3-14")
]  # fmt: skip


def git(repository: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(repository), *words], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("is_live", [False, True])
def test_the_cage_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_live: bool) -> None:
    """Between pinning the path and opening it: the host did nothing wrong, and no guest has started."""
    git(tmp_path, "init", "-q")
    lease, leased = Pool.lease, []

    def lease_after_a_change(pool: Pool, *words: Any, **named: Any) -> Any:
        leased.append(pool)
        if len(leased) == 1:
            git(tmp_path, "config", "branch.main.description", "x")
        return lease(pool, *words, **named)

    monkeypatch.setattr(Pool, "lease", lease_after_a_change)
    with Sandbox(tmp_path, work_path="host", live=is_live) as sandbox:
        assert sandbox.sh("echo '[evil]' >> .git/config || echo refused").stdout == "refused\n"
    assert len(leased) > 1 and "evil" not in (tmp_path / ".git/config").read_text()
