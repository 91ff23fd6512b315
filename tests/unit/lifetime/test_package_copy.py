"""The private copy of our package: its files, how modules are found in it, and what happens without room for it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import warmcell
from warmcell.interfaces.cli import serve
from warmcell.lifetime import package_copy

#: Says where it finds modules before, within and after the block.
PROGRAM = """
import os, subprocess, sys
import warmcell.core
from warmcell.lifetime.host_program import command_of_module
from warmcell.lifetime.package_copy import use_package_copy

with use_package_copy():
    import warmcell.pool.prestarted_manager as imported
    print(os.path.commonpath([imported.CAGE_DIR, warmcell.core.__path__[0], sys.path[0] + "/warmcell"]))
    said = subprocess.run(command_of_module("warmcell") + ["--version"], stdout=subprocess.PIPE, check=True).stdout
    print(os.path.isdir(imported.CAGE_DIR), said.decode().strip())
print(os.path.exists(imported.CAGE_DIR), warmcell.__path__[0], warmcell.core.__path__[0])
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    package, metadata = tmp_path / "installed" / "warmcell", tmp_path / "installed" / "warmcell-9.8.7.dist-info"
    for directory in (package / "inner", metadata):
        directory.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "module.py").write_text("X = 1\n")
    (package / "large.wasm").write_bytes(bytes(2 << 20))
    (metadata / "METADATA").write_text("Name: warmcell\n")
    os.utime(package / "inner" / "module.py", (1, 1))
    return package


def copy(installed: Path) -> Path:
    root = installed.parents[1] / "root"
    root.mkdir()
    package_copy._copy_package(str(installed), str(root))
    assert sorted(os.listdir(root)) == ["warmcell", "warmcell-9.8.7.dist-info"]
    return root / "warmcell"


def test_files_are_linked_where_that_is_possible(installed: Path) -> None:
    module = copy(installed) / "inner" / "module.py"
    assert module.samefile(installed / "inner" / "module.py") and not module.is_symlink()


def test_elsewhere_they_are_copied_except_large_ones(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    copied = copy(installed)
    module = copied / "inner" / "module.py"
    assert not module.samefile(installed / "inner" / "module.py") and module.read_text() == "X = 1\n"
    assert module.stat().st_mtime == 1
    assert (copied / "large.wasm").is_symlink() and (copied / "large.wasm").samefile(installed / "large.wasm")


def test_a_file_of_another_user_is_copied_among_links(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def refuse_some(source: str, target: str) -> None:
        if source.endswith("module.py"):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        link(source, target)

    monkeypatch.setattr(os, "link", refuse_some)
    copied = copy(installed)
    module = copied / "inner" / "module.py"
    assert module.read_text() == "X = 1\n" and not module.samefile(installed / "inner" / "module.py")
    assert (copied / "__init__.py").samefile(installed / "__init__.py")


def test_byte_code_is_written_to_the_installed_package(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    name = f"inner/__pycache__/module.{sys.implementation.cache_tag}.pyc"
    assert (copy(installed) / name).samefile(installed / name)


def test_byte_code_that_another_process_is_writing_is_left_out(installed: Path, tmp_path: Path) -> None:
    """It is renamed at any moment: the server then had no copy, and warned that a file did not exist."""
    cache = installed / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "a.cpython-312.pyc.140099172943408").symlink_to(tmp_path / "renamed")
    package_copy._copy_directory(str(installed), str(tmp_path / "copy"), package_copy._copy_file)
    assert not list((tmp_path / "copy/__pycache__").glob("*.pyc.*"))


def test_modules_and_processes_come_from_the_copy(tmp_path: Path) -> None:
    """Also their byte code, wherever Python is set to write it: the copy's would never be removed there."""
    environment = os.environ | {
        "PYTHONPATH": str(Path(warmcell.__path__[0]).parent),
        "PYTHONPYCACHEPREFIX": str(tmp_path),
    }
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True)
    first, second, third = ended.stdout.splitlines()
    assert "/warmcell-code-" in first and first.endswith("/warmcell")
    assert second.startswith("True ") and "warmcell" in second
    assert third == f"False {warmcell.__path__[0]} {warmcell.__path__[0]}/core"
    assert not list(tmp_path.rglob("warmcell-code-*"))


def test_a_server_starts_without_a_copy_if_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(package_copy, "_copy_package", refuse)
    with ExitStack() as stack:
        serve._use_package_copy(stack)
    said = capsys.readouterr().err
    assert "No space left" in said and "do not replace it while this server runs" in said
