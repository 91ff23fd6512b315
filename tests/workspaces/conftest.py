"""Fixtures for the workspace store."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmcell.workspaces import WorkspaceStore


@pytest.fixture
def store(tmp_path: Path) -> WorkspaceStore:
    return WorkspaceStore(tmp_path / "store")
