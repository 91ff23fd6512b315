"""Directories that belong to a sandbox alone: all that they contain counts, and no tool of the host runs anything there."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmcell import Limits, MountPoint, Sandbox, SandboxError
from warmcell.workspace.mount_points import OwnDirectory

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces"), pytest.mark.claim("WC-RX-3")]
LIMITS = Limits(disk_mb=20)
#: Ended by SIGXFSZ.
OVER = 128 + 25


def write(sandbox: Sandbox, name: str, megabytes: int = 12) -> int:
    return sandbox.run(f"open({name!r}, 'wb').write(bytes({megabytes} << 20))", timeout=60).exit_code


@pytest.mark.attack("S3-03")
@pytest.mark.parametrize("is_private", [True, False])
def test_runs_share_the_disk_limit(tmp_path: Path, is_private: bool) -> None:
    """Each could add as much as the limit: a hundred runs filled the disk of the host."""
    with Sandbox(None if is_private else OwnDirectory(str(tmp_path)), limits=LIMITS) as sandbox:
        assert write(sandbox, "one") == 0
        assert write(sandbox, "two") == OVER
        assert sandbox.run("import os; os.unlink('two')").exit_code == 0, "what is over the limit can be removed"
        assert write(sandbox, "one") == 0


@pytest.mark.attack("S3-03")
def test_a_live_cage_counts_what_its_directory_contains(tmp_path: Path) -> None:
    (tmp_path / "before").write_bytes(bytes(12 << 20))
    with Sandbox(OwnDirectory(str(tmp_path)), limits=LIMITS, live=True) as sandbox:
        assert write(sandbox, "one", 4) == 0
        with pytest.raises(SandboxError, match="disk"):
            write(sandbox, "two")


def test_what_was_in_a_directory_of_the_host_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "before").write_bytes(bytes(30 << 20))
    with Sandbox(tmp_path, limits=LIMITS) as sandbox:
        assert write(sandbox, "one") == 0
        assert write(sandbox, "two") == 0, "nor does what earlier runs added: the directory is not the sandbox's"
    with Sandbox(mounts=[MountPoint(tmp_path, "/data", writable=True)], limits=LIMITS) as sandbox:
        assert write(sandbox, "one") == 0
        assert write(sandbox, "/data/three") == 0, "beside a directory of the host, growth counts, for both together"


HOOK = """
import os
os.makedirs('.git/hooks', exist_ok=True)
open('.git/hooks/pre-commit', 'w').write('true')
"""


def make_repository(place: Path) -> Path:
    (place / ".git/hooks").mkdir(parents=True)
    (place / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (place / ".git/config").write_text("")
    return place


def test_a_repository_in_a_directory_of_its_own_is_the_sandboxs(tmp_path: Path) -> None:
    """After a pause, or in the second sandbox on it, the guest could not change its own configuration."""
    with Sandbox(OwnDirectory(str(make_repository(tmp_path)))) as sandbox:
        assert sandbox.run(HOOK).exit_code == 0
        sandbox.write_file(".git/config", "[user]\n")
        assert sandbox.run("open('.git/config', 'a').write('name = x')").exit_code == 0
    assert (tmp_path / ".git/config").read_text() == "[user]\nname = x"


@pytest.mark.attack("S3-14")
def test_a_repository_that_is_mounted_at_the_work_directory_is_protected(tmp_path: Path) -> None:
    """The mount was taken for a private directory."""
    with Sandbox(mounts=[MountPoint(make_repository(tmp_path), "/work", writable=True)]) as sandbox:
        assert sandbox.run("open('new', 'w')").exit_code == 0
        assert sandbox.run(HOOK).exit_code == 1
    assert not (tmp_path / ".git/hooks/pre-commit").exists() and (tmp_path / "new").exists()
