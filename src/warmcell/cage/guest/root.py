"""The guest's root: built on a tmpfs from trees that were opened outside, then pivoted into."""

from __future__ import annotations

import os
import stat
from typing import Sequence

from ..failure import step
from ..linux import mounts
from ..linux.mounts import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REMOUNT, mount
from ..plan import LaunchPlan

#: Parts of /proc that describe the host rather than the guest.
MASKED_PROC = (
    "cmdline",
    "keys",
    "key-users",
    "kcore",
    "timer_list",
    "sched_debug",
    "sysrq-trigger",
    "modules",
    "latency_stats",
)


def build(plan: LaunchPlan, trees: Sequence[int]) -> None:
    """Builds the whole root under one tmpfs and moves into it; afterwards the host's files have no name in here."""
    with step("make mounts private", "/"):
        mounts.make_private()
    enter_new_tmpfs("/tmp")
    with step("mount scratch"):
        _mount_scratch(plan)
    lay_out(plan, trees)
    with step("mount proc"):
        _mount_proc()
    with step("pivot root", "/"):
        mounts.pivot_into_working_directory()
    with step("seal root", "/"):
        mount(None, "/", None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def build_from_copy(copy: int, plan: LaunchPlan) -> None:
    """The same, from a copy of a root that was laid out and sealed before; only what is the guest's own is new."""
    with step("make mounts private", "/"):
        mounts.make_private()
    with step("mount root", "copy"):
        mounts.attach_tree(copy, "/tmp")
        os.chdir("/tmp")
    with step("mount scratch"):
        _mount_scratch(plan)
    with step("mount proc"):
        _mount_proc()
    with step("pivot root", "/"):
        mounts.pivot_into_working_directory()


def enter_new_tmpfs(place: str) -> None:
    with step("mount root", "tmpfs"):
        mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=2k,mode=0755")
        os.chdir(place)


def make_places(plan: LaunchPlan) -> None:
    """Empty directories for what each guest mounts for itself, in a root that will be read-only by then."""
    for path in ("run/scratch", "proc", *(_inside(path) for path, _ in plan.scratch_dirs)):
        os.makedirs(path, mode=0o755, exist_ok=True)


def lay_out(plan: LaunchPlan, trees: Sequence[int]) -> None:
    """What is the same for every guest of a plan, in the working directory."""
    with step("attach paths"):
        for bind, tree in zip(plan.binds, trees):  # noqa: B905  # `strict` came after Python 3.9
            _attach(tree, bind.target)
    with step("write files"):
        for path, content in plan.files:
            _write_file(path, content)
        for path, target in plan.symlinks:
            _make_parents(path)
            os.symlink(target, _inside(path))


def _inside(path: str) -> str:
    return path.lstrip("/") or "."


def _make_parents(path: str) -> None:
    os.makedirs(_inside(os.path.dirname(path)), mode=0o755, exist_ok=True)


def _mount_scratch(plan: LaunchPlan) -> None:
    """One sized tmpfs holds everything that the guest may write, so that one number bounds it all."""
    os.makedirs("run/scratch", mode=0o755, exist_ok=True)
    options = f"size={plan.scratch_bytes},nr_inodes={plan.scratch_inodes},mode=0755"
    mount("tmpfs", "run/scratch", "tmpfs", MS_NOSUID | MS_NODEV, options)
    for path, mode in plan.scratch_dirs:
        store = "run/scratch/" + path.strip("/").replace("/", "-")
        os.mkdir(store)
        os.chmod(store, mode)
        if not os.path.isdir(_inside(path)):
            os.makedirs(_inside(path), mode=0o755, exist_ok=True)
        mount(store, _inside(path), None, MS_BIND)
    mounts.detach("run/scratch")  # the parts keep it alive; as a whole it needs no name


def _attach(tree: int, target: str) -> None:
    inside = _inside(target)
    if not os.path.lexists(inside):
        _make_parents(target)
        if stat.S_ISDIR(os.fstat(tree).st_mode):
            os.mkdir(inside)
        else:
            os.close(os.open(inside, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    mounts.attach_tree(tree, inside)


def _mount_proc() -> None:
    """The guest's own: it shows the processes of its pid namespace, and of the host what cannot be left out."""
    os.makedirs("proc", mode=0o555, exist_ok=True)
    mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in MASKED_PROC:
        if os.path.exists(f"proc/{name}"):
            mount("dev/null", f"proc/{name}", None, MS_BIND)
    boot_id = "proc/sys/kernel/random/boot_id"
    if os.path.exists(boot_id):
        mount("proc/sys/kernel/random/uuid", boot_id, None, MS_BIND)


def _write_file(path: str, content: str) -> None:
    _make_parents(path)
    descriptor = os.open(_inside(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)
