"""Listeners are global to the process: each test here starts without any."""

from __future__ import annotations

import pytest

from warmcell.core import events


@pytest.fixture(autouse=True)
def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "listeners", ())
