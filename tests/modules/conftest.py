"""Fixtures for the module tests: one compiled guest per module and session, and the skip rule for missing tools."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.importorskip("wasmtime") if not os.environ.get("WARMCELL_MUST_WORK") else __import__("wasmtime")

from harness import Guest  # noqa: E402
from tests.helpers import one_worker  # noqa: E402


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Guest:
    with one_worker(tmp_path_factory, "node.wasm"):
        return Guest("node")


@pytest.fixture(scope="session")
def git(tmp_path_factory: pytest.TempPathFactory) -> Guest:
    with one_worker(tmp_path_factory, "git.wasm"):
        return Guest("git")
