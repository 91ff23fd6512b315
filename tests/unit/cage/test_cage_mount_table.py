"""The mounts of another process, found at the places where they are expected: the same as in its mountinfo, or nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.helpers import PATIENCE

from warmcell.cage import verify
from warmcell.cage.linux import mount_table
from warmcell.cage.linux.mount_table import MountTable
from warmcell.cage.linux.mounts import MS_RDONLY
from warmcell.cage.plan import Bind, LaunchPlan

pytestmark = [pytest.mark.claim("WC-KR-3"), pytest.mark.needs("user namespaces")]


_SMALL_ROOT = """
import json, os, sys
from warmcell.cage.linux.mounts import MNT_DETACH, mount
from warmcell.cage.linux.syscalls import call
root, places = sys.argv[1], json.loads(sys.argv[2])
mount("none", root, "tmpfs", 0)
os.chdir(root)
for place, flags in places:
    os.makedirs(place, exist_ok=True)
    mount("none", place, "tmpfs", flags)
call("pivot_root", b".", b".")
call("umount2", b".", MNT_DETACH)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def _process(tmp_path: Path, *mounts: tuple[str, int]) -> Iterator[int]:
    """A process with a small root of its own, and these mounts in it."""
    program = [sys.executable, "-c", _SMALL_ROOT, str(tmp_path), json.dumps(mounts)]
    command = ["unshare", "--user", "--map-root-user", "--mount", *program]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.stdin.close()
        process.wait(timeout=PATIENCE)
        process.stdout.close()


def _mountinfo(pid: int) -> dict[str, bool]:
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return dict(verify._parse(line.split(" ", 3)[3]) for line in lines)


def _table(pid: int) -> MountTable:
    """For the places that the process has now."""
    table = MountTable(_mountinfo(pid))
    if table.read(pid) is None:
        assert not table.is_usable
        pytest.skip("this kernel does not list the mounts of another process, or a file system is unknown")
    return table


def test_the_mounts_are_those_of_mountinfo(tmp_path: Path) -> None:
    with _process(tmp_path, ("a", 0), ("b", MS_RDONLY)) as pid:
        found = _table(pid).read(pid)
        assert found == _mountinfo(pid) == {"/": True, "/a": True, "/b": False}


@pytest.mark.parametrize(
    "mounts",
    [(("a", 0), ("b", 0), ("c", 0)), (("a", 0), ("b", 0), ("b", 0)), (("b", 0),), (("b", 0), ("c", 0))],
    ids=["one more", "one over another", "one less", "one elsewhere"],
)
def test_other_mounts_than_expected_are_not_vouched_for(
    tmp_path: Path, mounts: tuple[tuple[str, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount_table, "SECONDS_BETWEEN_LISTS", 0)
    with _process(tmp_path, ("a", 0), ("b", 0)) as pid:
        table = _table(pid)
    with _process(tmp_path, *mounts) as pid:
        assert table.read(pid) is None


def test_the_list_of_all_mounts_is_read_once_in_a_while(tmp_path: Path) -> None:
    with _process(tmp_path, ("a", 0)) as pid:
        table = _table(pid)
    with _process(tmp_path, ("a", 0), ("b", 0)) as pid:
        assert table.read(pid) is not None
        table._next_list = 0
        assert table.read(pid) is None
        assert table.read(pid) is None, "the next cell is listed until one is as planned"
    with _process(tmp_path, ("a/b", 0)) as pid:
        table._next_list = float("inf")
        assert table.read(pid) is None, "a place that is not a mount is seen in each cell"


def test_a_mount_that_became_writable_is_seen(tmp_path: Path) -> None:
    with _process(tmp_path, ("a", MS_RDONLY)) as pid:
        table = _table(pid)
    with _process(tmp_path, ("a", 0)) as pid:
        found = table.read(pid)
        assert found is not None and found["/a"]


def test_verify_reads_mountinfo_once_for_cells_of_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = LaunchPlan(hostname="mount-table")
    monkeypatch.setattr(verify, "_FEWEST_PROCESSORS", 1)
    with _process(tmp_path) as pid:
        _table(pid)
        first = verify._mounts(pid, plan)
        monkeypatch.setattr(verify.kernel_files, "read", lambda path: pytest.fail(path))
        assert verify._mounts(pid, plan) == first
        assert verify._tables.pop(plan).is_usable


def test_file_systems_of_the_caller_are_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_FEWEST_PROCESSORS", 1)
    monkeypatch.setattr(verify, "MountTable", lambda places: pytest.fail("asked"))
    plan = LaunchPlan(hostname="mount-table", binds=(Bind("/data", "/data", as_owner=True),))
    with _process(tmp_path) as pid:
        assert verify._mounts(pid, plan) == verify._mounts(pid, plan) == (_mountinfo(pid), ())
