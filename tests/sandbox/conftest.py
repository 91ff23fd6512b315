from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sandbox.fakes import Factory

from warmcell.sandbox.blocking import Sandbox


@pytest.fixture
def factory() -> Factory:
    return Factory()


@pytest.fixture
def sandbox(factory: Factory, tmp_path: Path) -> Iterator[Sandbox]:
    """Deep in a directory of the test's own: were a way out found, it would lead to nothing that matters."""
    work = tmp_path / "1/2/3/work"
    work.mkdir(parents=True)
    with Sandbox(work, guest_factory=factory) as made:
        yield made
