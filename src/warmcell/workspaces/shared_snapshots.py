"""SharedSnapshots: snapshots of sandboxes' work directories at a URL, for whichever host continues with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warmcell.workspace.remove import clear
from warmcell.workspace.snapshot import SnapshotId
from warmcell.workspace.workspace import Workspace
from warmcell.workspaces.store import WorkspaceStore


class SharedSnapshots:
    """The arguments are those of `WorkspaceStore`, which lists and resumes these snapshots too. Blocking."""

    def __init__(self, url: str, options: Mapping[str, Any], key: bytes | None) -> None:
        self._archive = WorkspaceStore(url, options=options, key=key)._archive

    def take(self, workspace: Workspace, source: str) -> SnapshotId:
        """`source` names the sandbox: its next snapshot stores what has changed."""
        document: dict[str, Any] = {"workspace": source, "workspace_name": source, "name": None, "settings": {}}
        return self._archive.take(workspace.host_path, source, document).id

    def restore(self, workspace: Workspace, snapshot: str) -> None:
        """Replace the content of the work directory."""
        self._archive.get(snapshot)  # raises before anything is removed
        clear(workspace.root)
        self._archive.restore(snapshot, workspace.root)
