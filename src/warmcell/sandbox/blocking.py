"""Sandbox: `AsyncSandbox` for blocking code, with the same arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from warmcell.lifetime.portal import portal
from warmcell.policy.model import SandboxPolicy
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.backend_adapters import GuestFactory, make_guest
from warmcell.sandbox.lifted import LiftedSandbox
from warmcell.sandbox.processes import AsyncProcess, Process, ProcessInfo, PtySize
from warmcell.workspace.archive.members import ArchiveLimits
from warmcell.workspace.diff import FsChange
from warmcell.workspace.files import DirEntry, FileStat
from warmcell.workspace.mount_points import WORK, MountPoint
from warmcell.workspace.snapshot import SnapshotId
from warmcell.workspace.workspace import AnyPath

if TYPE_CHECKING:
    from warmcell.core.contracts import SandboxBackend, SandboxEnforcer
    from warmcell.core.types import Limits
    from warmcell.languages.config import ProcessConfig
    from warmcell.net import FetchPolicy

__all__ = [
    "ArchiveLimits",
    "AsyncProcess",
    "AsyncSandbox",
    "DirEntry",
    "FileStat",
    "FsChange",
    "MountPoint",
    "Process",
    "ProcessInfo",
    "PtySize",
    "Sandbox",
    "SnapshotId",
]


class Sandbox(LiftedSandbox):
    """`AsyncSandbox` for blocking code: the same arguments, methods and errors. Safe to use from several threads."""

    def __init__(
        self,
        work_dir: AnyPath | None = None,
        *,
        backend: str | SandboxBackend = "process",
        mounts: Sequence[MountPoint] = (),
        env: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        memory_limit_mb: int | None = None,
        fuel: int | None = None,
        fetch_policy: FetchPolicy | None = None,
        policy: SandboxPolicy | None = None,
        config: ProcessConfig | None = None,
        enforcer: str | SandboxEnforcer = "auto",
        limits: Limits | None = None,
        live: bool = False,
        idle_timeout: float | None = None,
        work_path: str = WORK,
        forkable: bool = False,
        track_changes: bool = True,
        guest_factory: GuestFactory = make_guest,
    ) -> None:
        self._async = AsyncSandbox(
            work_dir,
            backend=backend,
            mounts=mounts,
            env=env,
            timeout=timeout,
            memory_limit_mb=memory_limit_mb,
            fuel=fuel,
            fetch_policy=fetch_policy,
            policy=policy,
            config=config,
            enforcer=enforcer,
            limits=limits,
            live=live,
            idle_timeout=idle_timeout,
            work_path=work_path,
            forkable=forkable,
            track_changes=track_changes,
            guest_factory=guest_factory,
        )
        portal.call(self._async.start)

    @property
    def work_dir(self) -> str:
        """Where the work directory is on the host."""
        return self._async.work_dir
