"""What the tests of the seats share."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator

import pytest

from warmcell import Sandbox

if os.environ.get("WARMCELL_SEATS") == "1":
    # scripts/test-seats installs every framework: what is missing there is no reason to skip.
    pytest.importorskip = importlib.import_module


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as made:
        yield made
