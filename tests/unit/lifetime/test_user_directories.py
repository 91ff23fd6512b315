"""The directories of a user, also of one without a home: the working directory, where guests may write, chooses none."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from warmcell.changes.layer import state_place
from warmcell.interfaces.serve.tokens import default_file
from warmcell.lifetime.held_directories import user_cache
from warmcell.workspaces.store import data_place

PLACES: dict[str, Callable[[], str]] = {
    "XDG_CACHE_HOME": user_cache,
    "XDG_CONFIG_HOME": default_file,
    "XDG_DATA_HOME": data_place,
    "XDG_STATE_HOME": state_place,
}


def find_no_user(_: int) -> None:
    raise KeyError("getpwuid(): uid not found")


@pytest.mark.needs("linux")
@pytest.mark.parametrize("variable", PLACES)
@pytest.mark.parametrize("named", [None, "", "below"])
@pytest.mark.parametrize("home", [None, "below"])
def test_without_a_home_directory_they_are_absolute(
    variable: str, named: str | None, home: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwd.getpwuid", find_no_user)
    for name, value in ((variable, named), ("HOME", home)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert PLACES[variable]().startswith("/.")


@pytest.mark.needs("linux")
@pytest.mark.parametrize("variable", PLACES)
def test_variables_and_the_home_directory_are_used(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/homes/user")
    monkeypatch.delenv(variable, raising=False)
    assert PLACES[variable]().startswith("/homes/user/.")
    monkeypatch.setenv(variable, "/elsewhere")
    assert os.path.dirname(PLACES[variable]()).startswith("/elsewhere")
