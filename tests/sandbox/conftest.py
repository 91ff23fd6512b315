from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.sandbox.fakes import Factory

from sandkeep.sandbox import Sandbox


@pytest.fixture
def factory() -> Factory:
    return Factory()


@pytest.fixture
def sandbox(factory: Factory) -> Iterator[Sandbox]:
    with Sandbox(guest_factory=factory) as made:
        yield made
