"""Who runs Sandkeep, and in which control group, and the few steps that bring a process there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
USER = 1000
_DELEGATED = ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads")


@dataclass(frozen=True)
class Setting:
    """`group` is where the process is; `delegated` is the group that its user owns, with all that is in it.

    `controllers` are what the groups above hand down. `has_company`: another program of the user is in the group.
    """

    name: str
    mechanism: str
    uid: int = 0
    group: str = ""
    delegated: str = ""
    controllers: str = "+cpu +memory +pids"
    has_company: bool = False

    @property
    def path(self) -> Path:
        return CGROUPS / self.group

    def make_groups(self) -> None:
        path = CGROUPS
        for part in Path(self.group).parts:
            if path.stat().st_uid == 0:  # what is delegated is its owner's to arrange
                (path / "cgroup.subtree_control").write_text(
                    "+cpu +memory +pids" if path == CGROUPS else self.controllers
                )
            path = path / part
            path.mkdir(exist_ok=True)
            if self.delegated and path.is_relative_to(CGROUPS / self.delegated):
                for name in _DELEGATED:
                    os.chown(path / name, self.uid, self.uid)

    def enter(self) -> None:
        """In a child that is to run the checks, or to keep it company."""
        if self.group:
            (self.path / "cgroup.procs").write_text("0")
        if self.uid:
            os.setgroups([])
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
            os.environ["HOME"] = "/home/user"
