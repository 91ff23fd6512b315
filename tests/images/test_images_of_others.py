"""Images that other tools made (tar, umoci, skopeo) are imported, and programs run in them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers import require
from tests.image_roots import add_busybox

from warmcell import ExecRequest, ProcessBackend, ProcessConfig
from warmcell.images import ImageStore

pytestmark = pytest.mark.needs("linux", "user namespaces")
NAME = "team/busybox:1"


def run(*command: str | Path) -> None:
    require(shutil.which(str(command[0])), f"{command[0]} is not installed")
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def make_root(place: Path) -> Path:
    root = place / "root"
    add_busybox(root, ("sh", "cat"))
    (root / "etc").mkdir()
    (root / "etc/os-release").write_text("ID=of-others\n")
    return root


def by_tar(place: Path) -> Path:
    run("tar", "-czf", place / "root.tar.gz", "-C", make_root(place), ".")
    return place / "root.tar.gz"


def by_umoci(place: Path) -> Path:
    layout, root = place / "layout", make_root(place)
    run("umoci", "init", "--layout", layout)
    run("umoci", "new", "--image", f"{layout}:1")
    run("umoci", "insert", "--rootless", "--image", f"{layout}:1", root, "/")
    run("umoci", "config", "--image", f"{layout}:1", "--config.cmd", "cat", "--config.cmd", "/etc/os-release")
    return layout


def by_skopeo(place: Path) -> Path:
    """In the format of `docker save`."""
    target, options = place / "saved.tar", ("--insecure-policy", "--tmpdir", place)
    run("skopeo", *options, "copy", f"oci:{by_umoci(place)}:1", f"docker-archive:{target}:{NAME}")
    return target


@pytest.mark.parametrize("make", [by_tar, by_umoci, by_skopeo])
def test_a_busybox_root_of_other_tools_runs(make: Callable[[Path], Path], tmp_path: Path) -> None:
    image = ImageStore(tmp_path / "store").import_(make(tmp_path), NAME)
    with ProcessBackend(ProcessConfig(pool_size=0), image=image) as backend:
        result = backend.execute_blocking(ExecRequest("command", "cat /etc/os-release", 60))
        assert (result.stdout, result.exit_code) == ("ID=of-others\n", 0), result.stderr
        if image.config.cmd:
            assert backend.execute_entrypoint_blocking(ExecRequest("command", "start", 60)).stdout == result.stdout
