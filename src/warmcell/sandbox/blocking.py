"""Sandbox: `AsyncSandbox` for blocking code."""

from __future__ import annotations

from typing import Any, Self

from warmcell.core.light import on_error
from warmcell.lifetime.portal import portal
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.blocking_base import BlockingBase
from warmcell.sandbox.signatures import arguments_of, blocking, same_arguments
from warmcell.workspace.diff import FsChange
from warmcell.workspace.files import DirEntry
from warmcell.workspace.mount_points import MountPoint

__all__ = ["AsyncSandbox", "DirEntry", "FsChange", "MountPoint", "Sandbox"]


class Sandbox(BlockingBase):
    """`AsyncSandbox` for blocking code: the same arguments, methods and errors. Safe to use from several threads."""

    _async: AsyncSandbox

    @arguments_of(AsyncSandbox)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._async = AsyncSandbox(*args, **kwargs)
        with on_error(self.destroy):  # the caller does not get it
            portal.call(self._async.start)

    changes = blocking(AsyncSandbox.changes)
    changes_patch = blocking(AsyncSandbox.changes_patch)
    commit = blocking(AsyncSandbox.commit)
    discard = blocking(AsyncSandbox.discard)
    keep_changes = blocking(AsyncSandbox.keep_changes)

    @same_arguments(AsyncSandbox.branch)
    def branch(self) -> Self:
        return self._wrap(portal.make(AsyncSandbox.destroy, self._async.branch))

    @property
    def changes_mechanism(self) -> str:
        """How changes are kept apart: "overlay"; or "copy of ..." where this host cannot mount one, with its size."""
        return self._async.changes_mechanism

    @property
    def work_dir(self) -> str:
        """The path of the work directory on the host."""
        return self._async.work_dir
