"""The manual page is made from the parser and is valid."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import warmcell as package
from warmcell.interfaces.cli.command_table import COMMANDS
from warmcell.interfaces.cli.manual import VARIABLES, pages

#: Between our own processes.
INTERNAL = {"WARMCELL_CHILD", "WARMCELL_DOCTOR_CANARY", "WARMCELL_GUEST_", "WARMCELL_MANAGER", "WARMCELL_PROCESS"}


def test_every_command_and_option_is_in_the_page(warmcell: Any) -> None:
    text = warmcell("man").stdout.replace("\\-", "-")
    assert [page.name for page in pages()] == list(COMMANDS)
    for page in pages():
        assert f".SS warmcell {page.name}\n" in text
        assert all(form in text for argument in page.arguments for form in argument.forms)


def test_every_variable_is_in_the_page() -> None:
    sources = (path.read_text("utf-8") for path in Path(str(package.__file__)).parent.rglob("*.py"))
    text = "\n".join(sources)
    found = set(re.findall(r"\bWARMCELL_[A-Z_]+\b", text)) | set(re.findall(r"\bXDG_[A-Z]+_HOME\b", text))
    assert found - INTERNAL == {name for name in VARIABLES if name.startswith(("WARMCELL_", "XDG_"))}


def test_man_accepts_it(warmcell: Any) -> None:
    if not shutil.which("groff"):
        pytest.skip("this host has no groff")
    command = ["groff", "-man", "-Tascii", "-ww", "-z"]
    checked = subprocess.run(command, input=warmcell("man").stdout, capture_output=True, text=True, check=True)
    assert checked.stderr == ""


def test_the_same_as_json(warmcell: Any) -> None:
    assert [page["name"] for page in json.loads(warmcell("man", "--json").stdout)] == list(COMMANDS)
