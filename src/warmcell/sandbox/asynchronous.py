"""AsyncSandbox: a sandbox on this host, or on a node. Files, commands, code and fetches over one work directory."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from warmcell.core.errors import InvalidRequest
from warmcell.core.types import ExecResult, check_timeout
from warmcell.sandbox.async_base import AsyncSandboxBase
from warmcell.sandbox.interface import PtySize, SandboxDriver
from warmcell.sandbox.local.driver import LocalSandbox
from warmcell.sandbox.local.session import LocalSession
from warmcell.sandbox.local.session_copies import read_session, write_session
from warmcell.sandbox.ports import check_port
from warmcell.sandbox.processes import AsyncProcess
from warmcell.sandbox.session import AsyncSession
from warmcell.sandbox.settings import SandboxSettings
from warmcell.sandbox.signatures import arguments_of

if TYPE_CHECKING:
    from warmcell.changes.layer import ChangeLayer
    from warmcell.changes.model import Change, CommitReport
    from warmcell.sessions.image import SessionImage
    from warmcell.workspace.root import Root


def _make_driver(settings: SandboxSettings) -> SandboxDriver:
    if settings.backend_name != "ray":
        return LocalSandbox(settings)
    # By name: it is in a room above this one.
    driver: SandboxDriver = import_module("warmcell.interfaces.client.cluster_sandbox").ClusterSandbox(settings)
    return driver


class AsyncSandbox(AsyncSandboxBase):
    """A sandbox on this host, or with `backend="ray"` on a node of a cluster.

    `SandboxSettings` describes the arguments, `AsyncSandboxBase` the methods.
    """

    @arguments_of(SandboxSettings)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._driver = _make_driver(SandboxSettings(*args, **kwargs).check())

    @property
    def work_dir(self) -> str:
        """The path of the work directory on the host."""
        return self._local.context.workspace.host_path

    @property
    def _local(self) -> LocalSandbox:
        if not isinstance(self._driver, LocalSandbox):
            raise InvalidRequest(f"the sandbox is not on this host, but on {self._driver.place}", field="backend")
        return self._driver

    @property
    def packages_directory(self) -> str | None:
        """The host directory of installed packages, which never changes; None if there are none."""
        packages = self._local.context.packages
        return None if packages is None else packages.path

    async def use_packages(self, directory: str) -> None:
        """Adds a copy of packages that another sandbox had installed."""
        await self._local.use_packages(directory)

    # ---- sessions that a later program continues ----

    def enable_session_images(self) -> None:
        """From now on, new Python sessions can be saved."""
        self._local.live.has_session_images = True

    async def write_session(
        self, session: AsyncSession, max_bytes: int, timeout: float
    ) -> tuple[dict[str, Any], SessionImage]:
        """An idle Python session, for `read_session` of another program: JSON, and its variables for the caller to
        close. Raises if it cannot be copied.
        """
        if not isinstance(session._driver, LocalSession):
            raise InvalidRequest("the session is not on this host")
        return await write_session(self._local.context, session._driver, max_bytes, timeout)

    async def read_session(self, plain: dict[str, Any], image: SessionImage) -> AsyncSession[Self]:
        """The session that `write_session` described, under the same id."""
        return AsyncSession(self, await read_session(self._local.context, self._local.live, plain, image))

    # ---- changes, with changes="ask" ----

    async def changes(self) -> list[Change]:
        """The differences from the host's directory. The cost grows with the changes, not with the directory."""
        return await self._local.changes.list()

    async def changes_patch(self, paths: Sequence[str] | None = None) -> str:
        """Text changes as a unified diff for `git apply`."""
        return await self._local.changes.patch(paths)

    async def commit(
        self, paths: Sequence[str] | None = None, *, allow_flagged: Sequence[str] = (), dry_run: bool = False
    ) -> CommitReport:
        """Writes the changes to the host: all, or those of these files and directories.

        What the host changed meanwhile is merged if it is text and merges cleanly; else it is a conflict and stays. A
        flagged change is skipped unless `allow_flagged` names it, or a directory above it. A commit that is killed is
        undone or completed by the next sandbox with changes.
        """
        return await self._local.changes.commit(paths, allow_flagged, dry_run)

    async def discard(self, paths: Sequence[str] | None = None) -> None:
        """Reverts all changes, or those of these files and directories. Running guests see that."""
        await self._local.changes.discard(paths)

    @property
    def changes_mechanism(self) -> str:
        """How changes are kept apart: "overlay"; or "copy of ..." where this host cannot mount one, with its size."""
        return self._local.changes.layer.mechanism

    async def end_for_review(self) -> tuple[ChangeLayer, Root]:
        """Ends all programs, so that the changes stay as they were reviewed. Returns the layer of changes, and the
        directory as guests see it, for blocking use.
        """
        await self._local.live.reset()
        return self._local.changes.layer, self._local.context.workspace.root

    async def keep_changes(self) -> str:
        """Keeps the changes when the sandbox closes, for a sandbox with `changes="resume"`. Returns where."""
        return await self._local.changes.keep()

    async def branch(self) -> Self:
        """A new sandbox on the same directory that starts with these changes and is then independent."""
        return self._with_driver(await self._local.branch())

    @property
    def network_update(self) -> dict[str, Any] | None:
        """The last argument of `update_network` as JSON, for a server that restores the sandbox."""
        return self._local.context.network.to_plain()

    async def spawn_code(
        self, code: str, language: str = "python", *, timeout: float, pty: PtySize | None = None
    ) -> AsyncProcess | ExecResult:
        """`spawn` for source text; the result of its build if that failed."""
        started = await self._local.spawn_code(code, language, check_timeout(timeout), pty)
        return started if isinstance(started, ExecResult) else AsyncProcess(started)

    async def pause_programs(self, spared: Sequence[int] = ()) -> None:
        """Stops all processes in the live cage except these pids. New programs can be started."""
        await self._local.live.pause(spared)

    async def resume_programs(self) -> None:
        """Continues what `pause_programs` stopped."""
        await self._local.live.resume()

    async def connect(self, port: int) -> socket.socket:
        """One connection to that port in the live cage, for the caller to close; `ConnectionError` if it is refused."""
        return await self._local.live.connect(check_port("port", port, 1))
