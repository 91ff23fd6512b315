"""`warmcell run` loads little. Checked by the list of modules, never by the clock."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from warmcell.lifetime.held_directories import create_held_directory

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bin/warmcell"
HEAVY = """
    asyncio wasmtime http ssl httpcore h11 idna brotli zstandard urllib.request email importlib.metadata logging
    multiprocessing concurrent unittest typing_extensions pydantic starlette uvicorn xml sqlite3 tomllib difflib
    argparse gettext platform shutil tempfile bz2 lzma zlib pathlib urllib random hashlib dataclasses inspect copy json typing socket selectors signal ctypes re
    contextlib contextvars resource mmap glob
"""
OUR_HEAVY = (
    "warmcell.net",
    "warmcell.backends.wasm",
    "warmcell.toolbox",
    "warmcell.sandbox.blocking",
    "warmcell.interfaces.tool",
    "warmcell.interfaces.serve",
)
HELP_NEEDS = {"argparse", "gettext", "re"}
#: Modules of ours that a plain run loads. Each takes a fifth of a millisecond.
MOST_MODULES = 102


def modules_of(*argv: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    command = [sys.executable, "-X", "importtime", str(SCRIPT), *argv]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}, ended


def heavy(loaded: set[str]) -> set[str]:
    """The heavy packages among them, apart from those that this interpreter's own start-up brings (.pth files)."""
    bare = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", ""], capture_output=True, text=True, check=True
    ).stderr
    ambient = {line.rpartition("|")[2].strip() for line in bare.splitlines()}
    packages = set(HEAVY.split())
    ours = {name for name in loaded if name.startswith(OUR_HEAVY)}
    return ours | {name for name in loaded - ambient if name in packages or name.partition(".")[0] in packages}


def test_the_command_is_our_own_script() -> None:
    """An entry point's would be written by the installer: pip's loads `re` before anything of ours begins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "warmcell" not in project["project"]["scripts"] and SCRIPT.is_file()


def test_a_run_loads_nothing_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to sweep either, where another program has its directories: they are held."""
    for name in ("TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    another = create_held_directory("warmcell-run-", str(tmp_path))
    loaded, ended = modules_of("run", "python", "-c", "print(6*7)")
    assert (ended.returncode, ended.stdout) == (0, "42\n"), ended.stderr[-2000:]
    another.release()
    assert heavy(loaded) == set()
    ours = sorted(name for name in loaded if name.startswith("warmcell"))
    assert len(ours) <= MOST_MODULES, ours
    swept, _ = modules_of("run", "python", "-c", "print(6*7)")
    assert "warmcell.workspace.remove" in swept and not os.path.exists(another.path)


def test_a_script_of_the_toolbox_needs_no_event_loop() -> None:
    loaded, ended = modules_of("sh", "echo hi")
    assert (ended.returncode, ended.stdout) == (0, "hi\n"), ended.stderr[-2000:]
    needless = {"asyncio", "ssl", "argparse", "http", "wasmtime", "warmcell.net", "warmcell.sandbox"}
    assert heavy(loaded) & needless == set()


def test_help_loads_no_backend() -> None:
    loaded, ended = modules_of("run", "--help")
    assert ended.returncode == 0
    assert {name.partition(".")[0] for name in heavy(loaded)} <= HELP_NEEDS
    rooms = ("warmcell.backends", "warmcell.runner", "warmcell.cage", "warmcell.core.types")
    assert {name for name in loaded if name.startswith(rooms)} == {"warmcell.cage", "warmcell.cage.bundle"}


def test_elsewhere_than_on_linux_nothing_is_started_ahead() -> None:
    """There is no `fcntl` on Windows, and no `os.pipe2` on macOS."""
    program = "import os, runpy, sys; sys.platform = 'darwin'; sys.modules['fcntl'] = None; del os.pipe2; "
    program += f"sys.argv = ['warmcell', 'run', 'no-such-language', '-c', '1']; runpy.run_path({str(SCRIPT)!r})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stderr.startswith("error: unknown language"), ended.stderr[-2000:]
