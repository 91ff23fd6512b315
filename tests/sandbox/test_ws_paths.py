"""WS-01 to WS-07, WS-14, FS-03, RX-07 and RX-08 through the object that an agent holds."""

from __future__ import annotations

import asyncio
import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import PATIENCE
from tests.sandbox.fakes import Factory

from warmcell.core.errors import InvalidRequest, PathTraversal, PolicyViolation, SandboxError
from warmcell.sandbox.blocking import AsyncSandbox, MountPoint, Sandbox
from warmcell.workspace.errors import LimitExceeded, WorkspaceError

Call = Callable[[Sandbox, str], Any]
READS: dict[str, Call] = {
    "read_file": lambda sandbox, path: sandbox.read_file(path),
    "read_text": lambda sandbox, path: sandbox.read_text(path),
    "list_dir": lambda sandbox, path: sandbox.list_dir(path),
    "stat": lambda sandbox, path: sandbox.stat(path),
    "exists": lambda sandbox, path: sandbox.exists(path),
    "download": lambda sandbox, path: sandbox.download(path),
    "exec cwd": lambda sandbox, path: sandbox.exec("ls", cwd=path),
    "sh cwd": lambda sandbox, path: sandbox.sh("ls", cwd=path),
}
WRITES: dict[str, Call] = {
    "write_file": lambda sandbox, path: sandbox.write_file(path, "evil"),
    "write_file without parents": lambda sandbox, path: sandbox.write_file(path, "evil", parents=False),
    "remove": lambda sandbox, path: sandbox.remove(path),
    "mkdir": lambda sandbox, path: sandbox.mkdir(path),
    "mkdir parents": lambda sandbox, path: sandbox.mkdir(path, parents=True),
    "upload": lambda sandbox, path: sandbox.upload(b"evil", path),
    "apply_patch": lambda sandbox, path: sandbox.apply_patch("--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n", path),
}
CALLS = READS | WRITES
#: "{out}" is a directory of the test's own: what a broken check would let through must be harmless.
PATHS = [
    "../x",
    "a/../../x",
    "{out}/secret",
    "/{out}/secret",
    "",
    "..",
    "~/warmcell-canary",
    "C:\\x",
    "C:/x",
    "a\\..\\..\\x",
    "..\\/x",
    "/work/../{out}/secret",
    "/workx/a",
    "/wor",
    "a\0b",
    "x" * 5000,
    "y" * 256,
    "\udc80",
]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A directory with a canary; looked at again when the test is over."""
    made = tmp_path / "outside"
    made.mkdir()
    (made / "secret").write_text("canary")
    yield made
    assert os.listdir(made) == ["secret"]
    assert (made / "secret").read_text() == "canary"


@pytest.mark.attack("WS-01")
@pytest.mark.attack("WS-06")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: ascii(path)[:24])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_path_outside_the_workspace_is_refused(
    sandbox: Sandbox, factory: Factory, outside: Path, call: Call, path: str
) -> None:
    with pytest.raises(PathTraversal):
        call(sandbox, path.replace("{out}", str(outside)))
    assert os.listdir(sandbox.work_dir) == []
    assert os.listdir(os.path.dirname(sandbox.work_dir)) == ["work"]
    assert factory.guest.calls == []


@pytest.mark.attack("WS-01")
@pytest.mark.parametrize("path", ["/etc/passwd", "//etc/passwd", "/work/../etc/passwd", "/", "/proc/self/environ"])
@pytest.mark.parametrize("call", READS.values(), ids=READS.keys())
def test_the_host_is_not_read(sandbox: Sandbox, call: Call, path: str) -> None:
    with pytest.raises(PathTraversal):
        call(sandbox, path)


@pytest.mark.attack("WS-01")
@pytest.mark.parametrize("call", ["write_file", "remove", "mkdir", "upload", "read_file"])
def test_the_work_directory_itself_cannot_be_written(sandbox: Sandbox, call: str) -> None:
    sandbox.write_file("keep", "")
    for path in (".", "./", "/work", "/work/."):
        with pytest.raises((PathTraversal, WorkspaceError)):
            CALLS[call](sandbox, path)
    assert [entry.name for entry in sandbox.list_dir(".")] == ["keep"]
    assert sandbox.stat(".").is_dir


@pytest.mark.attack("WS-06")
@pytest.mark.parametrize(
    "name", ["new\nline", "-rf", "\u202egpj.exe", "\uff0e\uff0e\uff0fx", "...", " ", "%2e%2e", "a;b"]
)
def test_unusual_names_are_accepted(sandbox: Sandbox, name: str) -> None:
    sandbox.write_file(name, "data")
    assert sandbox.read_text(name) == "data"
    assert os.listdir(sandbox.work_dir) == [name]
    assert [change.path for change in sandbox.diff()] == [name]
    sandbox.remove(name)


def test_guest_paths_mean_what_the_guest_sees(tmp_path: Path, factory: Factory) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/in.txt").write_text("in")
    mounts = [MountPoint(tmp_path / "data", "/data"), MountPoint(tmp_path / "data", "/put/in", writable=True)]
    with Sandbox(mounts=mounts, guest_factory=factory) as sandbox:
        sandbox.write_file("/work/a.txt", "a")
        assert sandbox.read_text("a.txt") == "a"
        assert sandbox.read_text("/data/in.txt") == "in"
        with pytest.raises(PolicyViolation, match="read-only"):
            sandbox.write_file("/data/new", "x")
        sandbox.write_file("/put/in/new", "x")
        assert (tmp_path / "data/new").read_text() == "x"
        for path in ("/dat", "/data2/in.txt", "/put", "/put/ins/new"):
            with pytest.raises(PathTraversal):
                sandbox.read_file(path)
        sandbox.exec("ls", cwd="/data")
        assert factory.guest.calls[-1][2].cwd == "/data"


def links(sandbox: Sandbox, outside: Path) -> dict[str, str]:
    """Every kind of link that a guest could make, and the paths that would pass through it."""
    here = sandbox.work_dir
    os.mkdir(f"{here}/d")
    os.symlink(outside / "secret", f"{here}/leaf")
    os.symlink("../" * 12 + str(outside / "secret").lstrip("/"), f"{here}/relative")
    os.symlink(outside, f"{here}/middle")
    os.symlink("middle", f"{here}/chain")
    os.symlink("chain", f"{here}/d/longer")
    os.symlink(outside / "not-yet", f"{here}/dangling")
    os.symlink("inside.txt", f"{here}/inside")
    Path(here, "inside.txt").write_text("mine")
    os.symlink("/proc/self/root", f"{here}/magic")
    return {
        "leaf": "leaf",
        "relative": "relative",
        "middle": "middle",
        "middle, file": "middle/secret",
        "middle, new": "middle/new.txt",
        "middle, new directories": "middle/x/y/new.txt",
        "chain": "chain/secret",
        "chain, new": "chain/new",
        "longer": "d/longer",
        "dangling": "dangling",
        "inside": "inside",
        "magic": f"magic{outside}/secret",
    }


LINKS = ["leaf", "relative", "middle", "middle, file", "middle, new", "middle, new directories", "chain"]
LINKS += ["chain, new", "longer", "dangling", "inside", "magic"]


@pytest.mark.attack("WS-02")
@pytest.mark.attack("WS-03")
@pytest.mark.attack("WS-04")
@pytest.mark.attack("FS-03")
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_no_method_follows_a_link(sandbox: Sandbox, outside: Path, call: Call, link: str) -> None:
    path = links(sandbox, outside)[link]
    with pytest.raises((PathTraversal, WorkspaceError)) as caught:
        call(sandbox, path)
    assert "canary" not in str(caught.value)
    assert Path(sandbox.work_dir, "inside.txt").read_text() == "mine"


@pytest.mark.attack("WS-02")
def test_whole_tree_operations_leave_the_targets_of_links_alone(sandbox: Sandbox, outside: Path) -> None:
    links(sandbox, outside)
    assert b"canary" not in sandbox.download()
    assert all(change.entry == "symlink" for change in sandbox.diff() if change.path != "inside.txt")
    taken = sandbox.snapshot()
    sandbox.restore(taken)
    fork = sandbox.fork()
    assert "canary" not in "".join(path.read_text() for path in Path(fork.work_dir).rglob("*.txt"))
    fork.destroy()
    sandbox.remove("d")
    sandbox.destroy()


@pytest.mark.attack("WS-07")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_fifo_is_refused_at_once(sandbox: Sandbox, call: Call) -> None:
    os.mkfifo(f"{sandbox.work_dir}/pipe")
    with pytest.raises((PathTraversal, WorkspaceError)):
        call(sandbox, "pipe")  # opening it would block until the test's time limit


@pytest.mark.attack("WS-07")
async def test_a_fifo_holds_up_neither_tree_operations_nor_the_event_loop(factory: Factory) -> None:
    async with AsyncSandbox(guest_factory=factory) as sandbox:
        os.mkdir(f"{sandbox.work_dir}/d")
        os.mkfifo(f"{sandbox.work_dir}/d/pipe")
        gaps = [0.0]

        async def tick() -> None:
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.001)
                gaps.append(time.monotonic() - before)

        ticking = asyncio.ensure_future(tick())
        async with asyncio.timeout(PATIENCE):
            assert [(c.path, c.entry) for c in await sandbox.diff()] == [("d/pipe", "other")]
            assert (await sandbox.snapshot()).skipped == ("d/pipe",)
            await sandbox.download()
            assert len(await sandbox.list_dir("d")) == 1
            fork = await sandbox.fork()
            assert await fork.list_dir("d") == []
            await fork.destroy()
            await sandbox.remove("d")
        ticking.cancel()
        assert max(gaps) < PATIENCE / 2  # opening it would block for ever


@pytest.mark.attack("WS-14")
def test_mounts_are_compared_by_whole_names(tmp_path: Path, factory: Factory) -> None:
    for name in ("a", "ab"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    mounts = [MountPoint(tmp_path / "a", "/ws/a"), MountPoint(tmp_path / "ab", "/ws/ab")]
    with Sandbox(mounts=mounts, guest_factory=factory) as sandbox:
        assert sandbox.read_text("/ws/a/file") == "a"
        assert sandbox.read_text("/ws/ab/file") == "ab"
        for path in ("/ws/abc/file", "/ws/A/file", "/ws/a/../ab/file", "/ws/a" + "b" * 10_000):
            with pytest.raises(PathTraversal):
                sandbox.read_file(path)


@pytest.mark.attack("WS-14")
@pytest.mark.parametrize(
    "guest_path",
    [
        "data",
        "../x",
        "/",
        "/..",
        "/a/../b",
        "",
        "/work/sub",
        "/proc",
        "/dev/shm",
        "/a\0b",
        "/out",
        "/code/x",
        "/tmp",
        "/home",
    ],
)
def test_an_invalid_mount_point_is_refused(tmp_path: Path, guest_path: str) -> None:
    with pytest.raises(InvalidRequest):
        MountPoint(tmp_path, guest_path)


@pytest.mark.parametrize("other", ["/data", "/data/sub"])
def test_mounts_that_hide_one_another_are_refused(tmp_path: Path, factory: Factory, other: str) -> None:
    with pytest.raises(InvalidRequest, match="mounts"):
        Sandbox(mounts=[MountPoint(tmp_path, "/data"), MountPoint(tmp_path, other)], guest_factory=factory)


@pytest.mark.attack("RX-07")
def test_a_sparse_terabyte_costs_neither_time_nor_memory(sandbox: Sandbox) -> None:
    with open(f"{sandbox.work_dir}/huge", "wb") as stream:
        try:
            stream.truncate(1 << 40)
        except OSError:
            pytest.skip("this file system has no files of that size")
    tracemalloc.start()
    started = time.monotonic()
    for call in (sandbox.read_file, sandbox.read_text, sandbox.download):
        with pytest.raises(LimitExceeded):
            call("huge")
    with pytest.raises(LimitExceeded):
        sandbox.download()
    sandbox.snapshot()
    with sandbox.fork() as branch:
        assert branch.stat("huge").size == 1 << 40
    with pytest.raises(SandboxError):
        sandbox.apply_patch("--- a/huge\n+++ b/huge\n@@ -1 +1 @@\n-x\n+y\n")
    assert [(c.path, c.kind, c.size) for c in sandbox.diff()] == [("huge", "created", 1 << 40)]
    assert sandbox.list_dir()[0].size == sandbox.stat("huge").size == 1 << 40
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.monotonic() - started < PATIENCE
    assert peak < 64 << 20


@pytest.mark.attack("RX-07")
def test_a_huge_file_disables_only_diff(tmp_path: Path, factory: Factory) -> None:
    with (tmp_path / "huge").open("wb") as stream:
        stream.truncate(8 << 30)
    with Sandbox(tmp_path, guest_factory=factory) as sandbox:
        assert sandbox.sh("true").ok
        with pytest.raises(LimitExceeded, match="huge"):
            sandbox.diff()


@pytest.mark.attack("RX-08")
def test_too_many_names_are_a_typed_error(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkdir(f"{sandbox.work_dir}/many")
    for number in range(10_001):
        os.close(os.open(f"{sandbox.work_dir}/many/{number}", os.O_CREAT, 0o600))
    with pytest.raises(LimitExceeded) as caught:
        sandbox.list_dir("many")
    assert caught.value.limit == 10_000
    assert len(sandbox.list_dir("many", max_entries=20_000)) == 10_001
    with pytest.raises(LimitExceeded):
        sandbox.download()
    monkeypatch.setattr("warmcell.workspace.walk.TreeLimits.__init__.__defaults__", (5_000, 1 << 30, 1 << 24, 120.0))
    for call in (sandbox.diff, sandbox.snapshot, sandbox.fork):
        with pytest.raises(LimitExceeded):
            call()
    sandbox.remove("many")
    assert sandbox.list_dir() == []
