"""What several test modules share."""

from __future__ import annotations

import os

import pytest

MUST_WORK = os.environ.get("SANDKEEP_MUST_WORK") == "1"


def require(condition: object, reason: str) -> None:
    """Skips when this host lacks something; fails instead where everything must work (CI)."""
    if condition:
        return
    if MUST_WORK:
        pytest.fail(f"SANDKEEP_MUST_WORK=1, but: {reason}")
    pytest.skip(reason)
