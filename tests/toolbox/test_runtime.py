"""The supervisor writes the byte code of what workers import: in their cage they cannot."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from warmcell.toolbox import runtime


@pytest.fixture
def bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The byte code path of the only source."""
    (tmp_path / "part.py").write_text("WORD = 'old'\n")
    (tmp_path / "library.so").write_text("no Python")
    monkeypatch.setattr(runtime, "_WORKER", str(tmp_path))
    monkeypatch.setattr(runtime, "wasmtime_directory", lambda: str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return tmp_path / "__pycache__" / f"part.{sys.implementation.cache_tag}.pyc"


def write() -> None:
    runtime.write_worker_bytecode.__wrapped__()  # uncached


def test_missing_bytecode_is_written_and_existing_is_kept(bytecode: Path) -> None:
    write()
    assert os.listdir(bytecode.parent) == [bytecode.name]
    made = bytecode.stat()
    write()
    assert bytecode.stat() == made


def test_a_source_newer_than_its_bytecode_is_compiled_again(bytecode: Path) -> None:
    write()
    source = bytecode.parent.parent / "part.py"
    source.write_text("WORD = 'newer'\n")
    later = bytecode.stat().st_mtime + 5
    os.utime(source, (later, later))
    write()
    assert b"newer" in bytecode.read_bytes()


def test_nothing_is_written_if_python_or_permissions_forbid_it(bytecode: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write()
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        write()
    assert not bytecode.parent.exists()


def test_a_source_that_does_not_compile_is_skipped(bytecode: Path) -> None:
    (bytecode.parent.parent / "broken.py").write_text("def")
    write()
    assert os.listdir(bytecode.parent) == [bytecode.name]
