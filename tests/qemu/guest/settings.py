"""The user and control group that Warmcell runs in, and how a process gets there."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
USER = 1000
MANAGER = "/usr/lib/systemd/systemd"
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
    #: The group of the user's service manager, if there is one. As in a login session, processes may be moved between
    #: that and our own group, but no groups can be made in ours.
    manager: str = ""

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

    def start_manager(self) -> None:
        """The user's systemd, in a child that becomes it."""
        runtime = Path(f"/run/user/{self.uid}")
        runtime.mkdir(mode=0o700, parents=True)
        os.chown(runtime, self.uid, self.uid)
        os.chown(self.path.parent / "cgroup.procs", self.uid, self.uid)
        group = replace(self, group=self.manager, delegated=self.manager)
        group.make_groups()
        group.enter()
        os.execve(MANAGER, [MANAGER, "--user"], {"XDG_RUNTIME_DIR": str(runtime), "HOME": "/home/user"})

    def await_manager(self) -> None:
        socket = Path(f"/run/user/{self.uid}/systemd/private")
        for _ in range(600):
            if socket.exists():
                break
            time.sleep(0.1)
        os.environ["XDG_RUNTIME_DIR"] = str(socket.parent.parent)

    def enter(self) -> None:
        """In a child that is to run the checks, or to keep it company."""
        if self.group:
            (self.path / "cgroup.procs").write_text("0")
        if self.uid:
            os.setgroups([])
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
            os.environ["HOME"] = "/home/user"
