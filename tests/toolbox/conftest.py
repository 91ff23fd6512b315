"""Fixtures of the toolbox tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import toolbox_harness as harness
from tests.helpers import one_worker


@pytest.fixture(scope="session", autouse=True)
def epoch_clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_worker(tmp_path_factory, "toolbox.wasm"):
        stop = harness.ticking()
    yield
    stop()


@pytest.fixture
def mounts(tmp_path: Path) -> dict[str, Path]:
    """A work directory and a /tmp, as in a sandbox."""
    for name in ("work", "tmp"):
        (tmp_path / name).mkdir()
    return {"/work": tmp_path / "work", "/tmp": tmp_path / "tmp"}
