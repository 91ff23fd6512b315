"""The notebook among the examples shows what it prints in a cage."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("WARMCELL_MUST_WORK") != "1":
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")

import nbformat
from nbclient import NotebookClient
from tests.jupyter.conftest import Install

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples/notebook.ipynb"


def outputs(notebook: Any) -> list[Any]:
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def test_the_notebook_prints_what_it_shows(install: Install) -> None:
    shown = nbformat.read(NOTEBOOK, as_version=4)
    executed = copy.deepcopy(shown)
    NotebookClient(executed, timeout=120).execute()  # with the kernel that the notebook names
    assert executed.metadata.kernelspec.name == "warmcell"
    assert len(outputs(shown)) == 5
    assert outputs(executed) == outputs(shown)
