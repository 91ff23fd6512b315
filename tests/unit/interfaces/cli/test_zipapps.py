"""`shiv -c warmcell` and `pex -c warmcell-cli` find the command although it is a program, not a console script."""

from __future__ import annotations

import tomllib
from configparser import ConfigParser
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import warmcell


def test_shiv_finds_a_callable_by_the_name_of_the_command() -> None:
    parser = ConfigParser()
    parser.read(Path(warmcell.__file__).parent.rglob("entry_points.txt"))  # as shiv does
    module, _, function = parser["console_scripts"]["warmcell"].partition(":")
    assert callable(getattr(import_module(module), function))


def test_pex_finds_a_console_script_by_another_name() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["warmcell-cli"].partition(":")
    assert callable(getattr(import_module(module), function))


def test_installers_do_not_see_a_console_script_of_the_commands_name() -> None:
    """They would write a Python wrapper in place of the compiled command."""
    assert not [point for point in entry_points(group="console_scripts") if point.name == "warmcell"]
