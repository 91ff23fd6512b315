"""One boot of the emulated machine for all its tests."""

from __future__ import annotations

import pytest
from tests.helpers import require
from tests.qemu.machine import CannotBoot, Report, boot


@pytest.fixture(scope="session")
def report() -> Report:
    """What the checks inside said. Skips where the machine cannot be had, fails there if everything must work."""
    try:
        return boot()
    except CannotBoot as reason:
        require(False, str(reason))
        raise
