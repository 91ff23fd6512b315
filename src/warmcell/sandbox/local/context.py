"""What the components of one local sandbox share: its settings, files, current guest and operations under way."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.local.guest_config import GuestConfig, list_protected
from warmcell.sandbox.local.guests import Guest, no_live_cage
from warmcell.sandbox.local.network import Fetcher, LocalNetwork
from warmcell.sandbox.local.operations import Operations
from warmcell.sandbox.settings import SandboxSettings
from warmcell.workspace.workspace import AnyPath, Workspace

if TYPE_CHECKING:
    from warmcell.changes.layer import ChangeLayer
    from warmcell.sandbox.local.pip_packages import Packages


def _open_layer(settings: SandboxSettings, parent: ChangeLayer | None) -> ChangeLayer:
    from warmcell.changes.layer import ChangeLayer
    from warmcell.workspace.mount_points import guest_work_path, host_path

    assert settings.work_dir is not None
    directory = host_path("work_dir", settings.work_dir)
    home = guest_work_path(settings.work_path, directory)
    enforcer = settings.enforcer if isinstance(settings.enforcer, str) else settings.enforcer.name
    may_mount = enforcer in ("auto", "native")
    resumes, keeps = settings.changes in ("resume", "keep"), settings.changes == "keep"
    return ChangeLayer(
        directory, home, resume=resumes and parent is None, parent=parent, may_mount=may_mount, keeps=keeps
    )


T = TypeVar("T")


class SandboxContext:
    """Belongs to one sandbox and, once it is used, to one event loop."""

    def __init__(self, settings: SandboxSettings, parent: ChangeLayer | None = None) -> None:
        self.id = secrets.token_hex(16)
        self.settings = settings
        self.limits = settings.effective_limits
        self.operations = Operations()
        self.fetcher = Fetcher(settings.fetch_policy)
        #: What `install` added; a directory that never changes.
        self.packages: Packages | None = None
        #: Keeps the changes of guests apart from the work directory; None: they write to it.
        self.layer = None if settings.changes is None else _open_layer(settings, parent)
        try:
            self.workspace = self._make_workspace()
        except BaseException:
            self._close_layer()
            raise
        try:
            self.guest = self.make_guest()
            self.network = LocalNetwork(self.fetcher, lambda: self.guest)
            self.network.attach()
            if settings.live and not getattr(self.guest, "has_live_cage", False):
                raise no_live_cage(settings.backend_name)
        except BaseException:
            self.close_files()
            raise

    def _make_workspace(self) -> Workspace:
        settings = self.settings
        # What tools of the host execute is flagged when it is committed; until then nothing reaches the host.
        protected = (lambda directory: ()) if self.layer is not None else partial(list_protected, settings.policy)
        return Workspace(
            settings.work_dir,
            settings.mounts,
            track_changes=settings.track_changes,
            disk_mb=self.limits.disk_mb,
            work_path=settings.work_path,
            layer=self.layer,
            protected=protected,
        )

    def close_files(self) -> None:
        """Closes the work directory, and removes it if it is private. Blocking."""
        try:
            self.workspace.close()
        finally:
            self._close_layer()

    def _close_layer(self) -> None:
        if self.layer is not None:
            self.layer.close()

    def make_guest(self) -> Guest:
        """A guest that sees the work directory and the packages of now."""
        settings = self.settings
        copy = None if self.layer is None or self.layer.overlay is not None else self.layer.copy_path
        config = GuestConfig(
            work_dir=copy or self.workspace.host_path,
            is_work_writable=self.workspace.is_writable,
            is_host_dir=settings.work_dir is not None and copy is None,
            mounts=tuple(settings.mounts),
            env=settings.env or {},
            memory_limit_mb=settings.memory_limit_mb,
            fuel=settings.fuel,
            policy=settings.policy,
            fetch=self.fetcher.answer_json if settings.fetch_policy is not None else None,
            fetch_policy=settings.fetch_policy,
            process_config=settings.config,
            enforcer=settings.enforcer,
            allow_weaker=settings.allow_weaker,
            image=settings.image,
            user=settings.user,
            idle_timeout=settings.idle_timeout,
            work_path=self.workspace.guest_path,
            packages=None if self.packages is None else self.packages.path,
            overlay=None if self.layer is None else self.layer.overlay,
        )
        return settings.guest_factory(settings.backend, config)

    async def guest_cwd(self, cwd: AnyPath | None) -> str:
        """A directory of the workspace or a mount, as the guest sees it."""
        if self.workspace.has_begun and (standing := self.workspace.standing_cwd(cwd)) is not None:
            return standing  # a thread would cost as much as a small run

        def begin_and_look() -> str:
            self.workspace.begin()
            return self.workspace.guest_cwd(cwd)

        return await in_thread(begin_and_look)

    async def on_disk(self, work: Callable[[], T]) -> T:
        """Runs blocking file work in a thread, after the state that `diff` compares with was recorded."""

        def begin_and_work() -> T:
            self.workspace.begin()
            return work()

        return await self.operations.run(in_thread(begin_and_work))

    async def start(self) -> None:
        if self.workspace.has_begun:  # a thread would cost as much as a small run
            self.operations.check_open()
        else:
            await self.on_disk(lambda: None)
