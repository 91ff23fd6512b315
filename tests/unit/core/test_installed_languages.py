"""A language that another package brings by entry point is as good as ours."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from warmcell.core import types
from warmcell.core.errors import InvalidRequest


def test_installed_languages_are_accepted_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ruby = EntryPoint("ruby", "some_package:Ruby", "warmcell.languages")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [ruby])
    types.installed_languages.cache_clear()
    try:
        assert types.ExecRequest("ruby", "puts 1", 5).language == "ruby"  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="language"):
            types.ExecRequest("Ruby", "puts 1", 5)  # type: ignore[arg-type]
    finally:
        types.installed_languages.cache_clear()
