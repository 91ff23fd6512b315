"""Who listens is the whole process's business: a test here starts with nobody, whoever else is still at work."""

from __future__ import annotations

import pytest

from warmcell.core import events


@pytest.fixture(autouse=True)
def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "listeners", ())
