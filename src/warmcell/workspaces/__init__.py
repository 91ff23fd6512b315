"""Persistent workspaces: directories, the settings of their sandboxes, and incremental snapshots."""

from warmcell.core.errors import SnapshotInvalid, SnapshotNotFound, WorkspaceNotFound
from warmcell.workspace.snapshot import SnapshotId
from warmcell.workspaces.manifest import GitRepo, Manifest
from warmcell.workspaces.store import SnapshotInfo, WorkspaceHandle, WorkspaceStore

__all__ = [
    "GitRepo",
    "Manifest",
    "SnapshotId",
    "SnapshotInfo",
    "SnapshotInvalid",
    "SnapshotNotFound",
    "WorkspaceHandle",
    "WorkspaceNotFound",
    "WorkspaceStore",
]
