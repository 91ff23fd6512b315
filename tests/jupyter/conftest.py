"""Kernelspecs as `warmcell jupyter install` makes them, in a place of the tests' own."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from warmcell.interfaces.cli import main

#: Its exit status, and what it said.
Install = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def install(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Install]:
    """`install("--name", "x", ...)`; Jupyter finds what it installed as long as the tests run."""
    prefix: Path = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(prefix / "share/jupyter"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(prefix / "runtime"))
        patch.setenv("IPYTHONDIR", str(prefix / "ipython"))
        patch.setenv("WARMCELL_TEST_SECRET", "of-the-host")

        def call(*options: str) -> tuple[int, str]:
            said = io.StringIO()
            with redirect_stderr(said), redirect_stdout(io.StringIO()):
                status = main(["jupyter", "install", "--prefix", str(prefix), *options])
            return status, said.getvalue()

        assert call() == (0, "")
        yield call


def is_on_host(marker: str) -> bool:
    """Whether a process of this host has the marker in its command line."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if marker.encode() in Path("/proc", name, "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False
