"""Control groups from the supervisor's side: what is written, what is read, whose they are after a fork."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.helpers import in_a_fork, open_descriptors

from warmcell.runner import cgroup_parent
from warmcell.runner.cgroup_parent import GroupParent, group_parent
from warmcell.runner.cgroups import Group, GroupLimits
from warmcell.runner.outcome import KernelUsage

V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group({"": str(tmp_path)}, "warmcell-x", GroupLimits(64 << 20, 17, 0.5))


def test_limits_of_version_2(group: Group, tmp_path: Path) -> None:
    base = tmp_path / "warmcell-x"
    written = {path.name: path.read_text() for path in base.iterdir()}
    assert written == {
        "memory.max": str(64 << 20),
        "memory.oom.group": "1",
        "pids.max": "17",
        "cpu.max": "50000 100000",
    }
    assert group.join_paths() == [str(base / "cgroup.procs")]


def test_usage_of_version_2(group: Group, tmp_path: Path) -> None:
    base = tmp_path / "warmcell-x"
    (base / "memory.peak").write_text("12345\n")
    (base / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 2\n")
    (base / "pids.events").write_text("max 3\n")
    (base / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    assert group.usage() == KernelUsage(12345, 1.5, 2, 3)
    (base / "memory.events").write_text("oom 0\noom_kill 2\n")
    assert group.usage() == KernelUsage(12345, 1.5, 0, 3, outside_kills=2)


def test_a_group_that_has_gone_used_nothing(group: Group, tmp_path: Path) -> None:
    for path in (tmp_path / "warmcell-x").iterdir():
        path.unlink()
    group.remove()
    assert not (tmp_path / "warmcell-x").exists()
    assert group.usage() == KernelUsage(0, 0.0, 0, 0)


def test_a_figure_that_could_not_be_read_is_not_zero(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a guest that was killed for its memory would seem to have ended by itself."""

    def no_descriptor_left(path: str) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("warmcell.cage.linux.kernel_files.read_short", no_descriptor_left)
    with pytest.raises(OSError, match="Too many"):
        group.usage()


def test_counters_that_were_opened_before_tell_what_is_there_now(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for the end of a run waits for no file to be opened."""
    base, files = tmp_path / "warmcell-x", ("memory.peak", "memory.events", "pids.events", "cpu.stat")
    for name in files:
        (base / name).write_text("")
    before = open_descriptors()
    group.open_counters()
    (base / "memory.peak").write_text("12345\n")
    (base / "memory.events").write_text("max 9\noom 1\noom_kill 2\noom_group_kill 7\n")
    (base / "pids.events").write_text("max 3\n")
    (base / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", None)
        assert group.usage() == group.usage() == KernelUsage(12345, 1.5, 2, 3)
    assert len(open_descriptors() - before) == 4
    group.remove()
    assert open_descriptors() <= before and group.usage() == KernelUsage(12345, 1.5, 2, 3)


def test_counters_that_cannot_be_opened_now_are_opened_at_the_end(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor_left(*args: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    (tmp_path / "warmcell-x" / "pids.events").write_text("max 3\n")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", no_descriptor_left)
        group.open_counters()
    assert group.usage().process_refusals == 3


def test_limits_and_usage_of_version_1(tmp_path: Path) -> None:
    for name in V1_CONTROLLERS:
        (tmp_path / name).mkdir()
    directories = {name: str(tmp_path / name) for name in V1_CONTROLLERS}
    made = Group(directories, "warmcell-x", GroupLimits(64 << 20, 17, 2.0))
    memory = tmp_path / "memory" / "warmcell-x"
    assert (memory / "memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (tmp_path / "cpu" / "warmcell-x" / "cpu.cfs_quota_us").read_text() == "200000"
    (memory / "memory.max_usage_in_bytes").write_text("99\n")
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    (tmp_path / "cpuacct" / "warmcell-x" / "cpuacct.usage").write_text("2500000000\n")
    (tmp_path / "pids" / "warmcell-x" / "pids.events").write_text("max 1\n")
    assert made.usage() == KernelUsage(99, 2.5, 4, 1)


@pytest.mark.attack("RX-02")
@pytest.mark.parametrize("counts_swap", [True, False])
def test_no_guest_uses_swap_that_version_1_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts_swap: bool
) -> None:
    """Without swap accounting, a guest that reaches its limit would go on in the swap of the host."""
    for name in V1_CONTROLLERS:
        (tmp_path / name).mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os.path, "exists", lambda path: counts_swap or "memsw" not in str(path))
        Group({name: str(tmp_path / name) for name in V1_CONTROLLERS}, "warmcell-x", GroupLimits(64 << 20, 17))
    memory = tmp_path / "memory" / "warmcell-x"
    written = {path.name: path.read_text() for path in memory.iterdir() if "sw" in path.name}
    expected = {"memory.memsw.limit_in_bytes": str(64 << 20)} if counts_swap else {"memory.swappiness": "0"}
    assert written == expected


def test_a_group_that_cannot_be_limited_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError):
        Group({"": str(tmp_path / "nowhere")}, "warmcell-x", GroupLimits(1 << 20, 1))
    parent = GroupParent({"": str(tmp_path)})
    monkeypatch.setattr(GroupParent, "directories", {"": str(tmp_path)})
    with pytest.raises(OSError, match="cpu controller"):
        parent.make_group("warmcell-y", GroupLimits(1 << 20, 1, 1.0))
    assert not (tmp_path / "warmcell-y").exists()


class TestParent:
    """Of version 1, which plain directories can stand in for."""

    @pytest.fixture
    def parent(self, tmp_path: Path) -> GroupParent:
        return GroupParent(dict.fromkeys(V1_CONTROLLERS, str(tmp_path)))

    def test_what_the_killed_left_is_swept_and_what_is_held_is_not(self, parent: GroupParent, tmp_path: Path) -> None:
        left = tmp_path / "warmcell.home.1.1"
        (left / "warmcell-cell").mkdir(parents=True)
        held = Path(parent.directories["memory"])
        assert not left.exists() and held.is_dir()
        beside = GroupParent(dict.fromkeys(V1_CONTROLLERS, str(tmp_path)))
        assert beside.directories["memory"] != str(held) and held.is_dir()
        beside.close()
        assert held.is_dir()
        parent.close()
        assert list(tmp_path.iterdir()) == []

    def test_each_cell_that_waits_for_a_processor_adds_the_weight_of_a_task(self, parent: GroupParent) -> None:
        shares = Path(parent.directories["cpu"]) / "cpu.shares"
        shares.write_text("1024")
        cells = [parent.make_group(f"warmcell-{number}", GroupLimits(1 << 20, 1)) for number in range(3)]
        for cell in cells[1:]:
            cell.add_task_weight()
            cell.add_task_weight()
        assert shares.read_text() == "3072"
        for cell in cells:
            cell.remove()
        assert shares.read_text() == "1024"
        parent._add_weight(10_000)
        assert shares.read_text() == str(1 << 18)
        shares.unlink()

    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
    def test_a_fork_has_one_of_its_own_and_leaves_the_originals(self, parent: GroupParent, tmp_path: Path) -> None:
        ours = parent.directories["memory"]

        def use_and_close() -> list[str]:
            theirs = parent.directories["memory"]
            parent.close()
            return [theirs, *(path.name for path in tmp_path.iterdir())]

        theirs, *left = in_a_fork(use_and_close, ends="sys.exit")  # type: ignore[misc]
        assert theirs != ours and left == [Path(ours).name] and os.path.isdir(ours)
        # The copy of the lock that the fork closed was not the lock.
        GroupParent(dict.fromkeys(V1_CONTROLLERS, str(tmp_path))).close()
        assert os.path.isdir(ours)

    def test_being_short_of_descriptors_is_no_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It would mean weaker limits for as long as this process lives."""

        def exhausted() -> GroupParent:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(cgroup_parent, "_in_version_2", exhausted)
        with pytest.raises(OSError, match="Too many"):
            cgroup_parent.find()
        monkeypatch.setattr(cgroup_parent, "_in_version_2", lambda: None)
        monkeypatch.setattr(cgroup_parent, "_in_version_1", lambda: None)
        monkeypatch.setattr(cgroup_parent, "_in_a_scope_of_systemd", lambda: None)
        assert cgroup_parent.find() is None


def test_where_groups_can_be_made_they_are_really_there() -> None:
    parent = group_parent()
    if parent is None:
        return
    made = parent.make_group("warmcell-unit", GroupLimits(64 << 20, 16))
    paths = [os.path.dirname(way) for way in made.join_paths()]
    assert all(map(os.path.isdir, paths))
    if parent.has_cpu:
        controller, file, one, _ = cgroup_parent._WEIGHTS[parent.version]
        made.add_task_weight()
        assert Path(parent.directories[controller], file).read_text() == f"{2 * one}\n"
    made.remove()
    assert not any(map(os.path.isdir, paths))
