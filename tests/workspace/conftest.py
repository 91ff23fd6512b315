from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import require

from warmcell.workspace import openat2
from warmcell.workspace.remove import clear
from warmcell.workspace.root import Root


@pytest.fixture(params=["openat2", "walk"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Root]:
    """A workspace, once per way of opening beneath it."""
    if request.param == "openat2":
        require(openat2.is_available(), "this kernel has no openat2")
    inside = tmp_path / "inside"
    inside.mkdir()
    made = Root(inside, resolver=request.param)
    yield made
    clear(made)  # pytest's own removal fails on the deep trees that some tests make
    made.close()
