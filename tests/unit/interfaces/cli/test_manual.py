"""The manual page is made from the parser and is valid."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from warmcell.interfaces.cli.command_table import COMMANDS
from warmcell.interfaces.cli.manual import pages


def test_every_command_and_option_is_in_the_page(warmcell: Any) -> None:
    text = warmcell("man").stdout.replace("\\-", "-")
    assert [page.name for page in pages()] == list(COMMANDS)
    for page in pages():
        assert f".SS warmcell {page.name}\n" in text
        assert all(form in text for argument in page.arguments for form in argument.forms)


def test_man_accepts_it(warmcell: Any) -> None:
    if not shutil.which("groff"):
        pytest.skip("this host has no groff")
    command = ["groff", "-man", "-Tascii", "-ww", "-z"]
    checked = subprocess.run(command, input=warmcell("man").stdout, capture_output=True, text=True, check=True)
    assert checked.stderr == ""


def test_the_same_as_json(warmcell: Any) -> None:
    assert [page["name"] for page in json.loads(warmcell("man", "--json").stdout)] == list(COMMANDS)
