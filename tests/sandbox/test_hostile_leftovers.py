"""S2-13 and S2-23: what a guest leaves behind, for the clean-up to choke on or for the next run to trip over."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.helpers import require
from tests.sandbox.fakes import Factory

from warmcell import ExecRequest, Limits, ProcessBackend, SandboxPolicy, SandboxPolicyBuilder
from warmcell.core.errors import EnforcerUnavailable, InvalidRequest, PolicyViolation, SandboxError
from warmcell.core.events import listen
from warmcell.enforcers import host_paths
from warmcell.enforcers.host_paths import follow
from warmcell.sandbox.blocking import MountPoint, Sandbox
from warmcell.workspace.remove import remove_directory

#: 2,200 levels, whose path is longer than any call takes, unlistable at both ends. In the work directory only: in the bare class /tmp is the host's.
DEEP = """
import contextlib, os
here = os.open('.', os.O_RDONLY)
for level in range(2200):
    os.mkdir('d', dir_fd=here)
    child = os.open('d', os.O_RDONLY, dir_fd=here)
    if level in (1100, 2199):
        os.close(os.open('file', os.O_CREAT | os.O_WRONLY, 0, dir_fd=child))
    os.close(here)
    here = child
os.makedirs('closed/inner')
with contextlib.suppress(PermissionError):  # the class landlock forbids it
    os.fchmod(here, 0)
    os.chmod('closed/inner', 0o300)
    os.chmod('closed', 0)
    os.chmod('d', 0o100)
print('made')
"""
#: What cannot be counted (too deep) is judged by how full the file system is, and this one is not ours alone.
PLENTY = Limits(disk_mb=1 << 20)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary directory, used by Warmcell alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    for name in os.listdir(tmp_path):
        remove_directory(str(tmp_path / name))


@pytest.mark.attack("S2-13")
@pytest.mark.needs("linux")
@pytest.mark.needs("user namespaces")
def test_a_sandbox_leaves_no_tree_however_deep(temporary: Path) -> None:
    with Sandbox(timeout=120, policy=SandboxPolicy(allow_process_spawn=True, limits=PLENTY)) as sandbox:
        assert sandbox.run(DEEP).stdout == "made\n"
        assert os.listdir(temporary) != []
    assert os.listdir(temporary) == []


@pytest.mark.attack("S2-13")
@pytest.mark.needs("linux")
@pytest.mark.parametrize("enforcer", [None, "landlock"])
def test_a_run_without_a_root_of_its_own_leaves_no_tree_however_deep(temporary: Path, enforcer: str | None) -> None:
    try:
        backend = ProcessBackend(enforcer=enforcer)
        backend.capabilities()
    except EnforcerUnavailable as error:
        require(False, str(error))
    with backend:
        result = backend.execute_blocking(ExecRequest("python", DEEP, 120, limits=PLENTY))  # type: ignore[arg-type]
        assert (result.stdout, result.stderr) == ("made\n", "")
        assert os.listdir(temporary) == []


@pytest.mark.attack("S2-13")
def test_a_wasm_sandbox_leaves_no_tree_however_deep(temporary: Path) -> None:
    require(importlib.util.find_spec("wasmtime"), "wasmtime is not installed")
    with Sandbox(backend="wasm") as sandbox:
        mine = [name for name in os.listdir(temporary) if "tmp" in name]
        for name in mine:  # as a guest would, only quicker
            here = os.open(temporary / name, os.O_RDONLY)
            for _ in range(2200):
                os.mkdir("d", dir_fd=here)
                child = os.open("d", os.O_RDONLY, dir_fd=here)
                os.close(here)
                here = child
            os.fchmod(here, 0)
            os.close(here)
        assert len(mine) == 1
        assert sandbox.list_dir() == []
    assert os.listdir(temporary) == []


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """A former work directory, in which a guest put a link to something of the host's where a directory was."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/key").write_text("canary")
    stage = tmp_path / "stage"
    (stage / "out").mkdir(parents=True)
    factory = Factory()
    with Sandbox(stage, guest_factory=factory) as first:

        def plant(_: str) -> None:
            os.rmdir(stage / "out")
            os.symlink(tmp_path / "secrets", stage / "out")
            os.symlink("out/key", stage / "leaf")

        factory.guest.on_run = plant
        first.sh("plant")
    return stage


USES: dict[str, Callable[[Path, Sandbox], object]] = {
    "work_dir": lambda stage, other: Sandbox(stage / "out", guest_factory=Factory()),
    "work_dir below": lambda stage, other: Sandbox(stage / "out/.", guest_factory=Factory()),
    "mount": lambda stage, other: MountPoint(stage / "out", "/data"),
    "upload of a directory": lambda stage, other: other.upload(stage / "out", "data"),
    "upload of a file": lambda stage, other: other.upload(stage / "out/key", "data"),
    "upload of a link": lambda stage, other: other.upload(stage / "leaf", "data"),
    "upload of an archive": lambda stage, other: other.upload(stage / "leaf", extract=True),
}


@pytest.mark.attack("S2-23")
@pytest.mark.parametrize("use", USES)
def test_a_link_left_for_the_next_is_not_followed(stage: Path, tmp_path: Path, use: str) -> None:
    (tmp_path / "other").mkdir()
    with Sandbox(tmp_path / "other", guest_factory=Factory()) as other:
        with pytest.raises(InvalidRequest, match="a guest may have put there") as caught:
            USES[use](stage, other)
        assert other.list_dir() == []
    assert str(tmp_path / "secrets") in str(caught.value)  # the error names the target


@pytest.mark.attack("S2-23")
@pytest.mark.needs("linux")
@pytest.mark.needs("user namespaces")
def test_a_policy_does_not_follow_a_link_that_a_guest_left(stage: Path) -> None:
    for policy in (
        SandboxPolicyBuilder().allow_read(stage / "out").build(),
        SandboxPolicyBuilder().allow_read_write(stage / "out").build(),
        SandboxPolicyBuilder().allow_read(stage / "leaf").build(),
    ):
        with pytest.raises(PolicyViolation, match="a guest may have put there"):
            ProcessBackend(policy=policy).execute_blocking(ExecRequest("python", "print(1)", 10))  # type: ignore[arg-type]


@pytest.mark.attack("S2-23")
def test_system_links_are_followed_and_others_reported(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    found = follow(tmp_path / "link/below")
    assert (found.real, found.foreign_link, found.guest_link) == (
        str(tmp_path / "real/below"),
        str(tmp_path / "link"),
        None,
    )
    assert follow(tmp_path / "real").foreign_link is None
    for path in ("/bin/sh", "/etc/mtab", "/proc/self/root"):
        if os.path.islink(path) or os.path.islink(os.path.dirname(path)):
            assert os.path.samefile(follow(path).real, path) or "/proc" in follow(path).real
    assert follow("/bin").foreign_link is None
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(SandboxError):
        Sandbox(tmp_path / "circle", guest_factory=Factory())


@pytest.mark.attack("S2-23")
@pytest.mark.needs("linux")
@pytest.mark.needs("user namespaces")
@pytest.mark.parametrize("work_path", ["host", "/work"])
def test_a_repository_whose_name_is_not_utf_8_is_protected_in_the_next_sandbox(tmp_path: Path, work_path: str) -> None:
    """Events have the hash of its policy."""
    stop = listen(lambda event: None)
    try:
        with Sandbox(tmp_path, work_path=work_path) as sandbox:
            sandbox.sh(r"mkdir -p $(printf 'x\377')/.git")
        config = tmp_path / os.fsdecode(b"x\xff") / ".git" / "config"
        config.write_text("[core]\n")
        with Sandbox(tmp_path, work_path=work_path) as sandbox:
            sandbox.sh(r"cd $(printf 'x\377'); touch written; echo '[evil]' >> .git/config")
    finally:
        stop()
    assert config.read_text() == "[core]\n"
    assert (config.parents[1] / "written").exists()


def test_private_directories_are_forgotten_with_their_sandboxes() -> None:
    """A server makes millions of them."""
    before = set(host_paths._guest_writable)
    with Sandbox() as sandbox:
        assert sandbox.run("print(1)").stdout == "1\n"
        assert host_paths._guest_writable - before
    assert not host_paths._guest_writable - before
