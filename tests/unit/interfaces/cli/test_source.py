"""Which program was meant."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from warmcell.interfaces.cli.exits import UsageError
from warmcell.interfaces.cli.source import Source, choose, read_code, read_guest_stdin
from warmcell.languages.registry import find_language
from warmcell.languages.row import LanguageRow
from warmcell.languages.table import ROWS

PYTHON, COMMAND, TYPESCRIPT, WASM = (find_language(name) for name in ("python", "command", "typescript", "wasm"))


@pytest.mark.parametrize(
    ("target", "source", "inline", "meant"),
    [
        ("python", None, "print(1)", Source(PYTHON, inline="print(1)")),
        ("python", "-", None, Source(PYTHON)),
        ("python", None, None, Source(PYTHON)),
        ("py", "tool", None, Source(PYTHON, path="tool")),
        ("sh", None, "ls", Source(COMMAND, inline="ls")),
        ("a/script.ts", None, None, Source(TYPESCRIPT, path="a/script.ts")),
        ("Golang.ts", None, None, Source(TYPESCRIPT, path="Golang.ts")),
        ("UPPER.PY", None, None, Source(PYTHON, path="UPPER.PY")),
        ("./python.py", None, None, Source(PYTHON, path="./python.py")),
    ],
)
def test_what_the_words_mean(target: str, source: str | None, inline: str | None, meant: Source) -> None:
    assert choose(target, source, inline) == meant


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_files_by_suffix_and_languages_by_every_name(row: LanguageRow) -> None:
    for suffix in row.suffixes:
        assert choose(f"x{suffix}", None, None) == Source(row, path=f"x{suffix}")
    for name in (row.name, *row.aliases):
        assert choose(name.upper(), None, "1") == Source(row, inline="1")


@pytest.mark.attack("PT-05")
@pytest.mark.parametrize(
    ("target", "source", "inline", "hint"),
    [
        ("pyhton", None, "1", "did you mean 'python'?"),
        ("pyhton", None, None, "did you mean 'python'?"),
        ("cobol", "x.cob", None, "one of python"),
        ("notes.txt", None, None, "warmcell run python notes.txt"),
        ("../../bin/sh", None, None, "warmcell run python"),
        ("python", "x.py", "1", "give one program"),
    ],
)
def test_what_cannot_be_meant(target: str, source: str | None, inline: str | None, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose(target, source, inline)
    assert hint in (caught.value.hint or "")


def test_reading_files(tmp_path: Path) -> None:
    text, module = tmp_path / "x.py", tmp_path / "x.wasm"
    text.write_text("print('é')", encoding="utf-8")
    module.write_bytes(b"\0asm\xff")
    assert read_code(Source(PYTHON, path=str(text))) == "print('é')"
    assert read_code(Source(WASM, path=str(module))) == b"\0asm\xff"


@pytest.mark.parametrize("name", ["missing.py", "."])
def test_unreadable_files_are_usage_errors(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_code(Source(PYTHON, path=str(tmp_path / name)))


def test_binary_rubbish_is_not_a_program(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        read_code(Source(PYTHON, path=str(tmp_path / "x.py")))


def test_a_silent_pipe_is_nothing_to_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, os.fdopen(writer, "w"):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert read_guest_stdin(Source(PYTHON, inline="1"), 0.05) is None
    assert "warning: no data on stdin" in capsys.readouterr().err


def test_a_pipe_that_never_ends_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"some")
    with os.fdopen(reader) as stdin, os.fdopen(writer, "w"):
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(UsageError, match="timed out"):
            read_guest_stdin(Source(PYTHON, inline="1"), 0.05)


def test_a_pipe_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"\0\xffdata")
    os.close(writer)
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert read_guest_stdin(Source(PYTHON, inline="1"), 5) == b"\0\xffdata"


def test_a_closed_stdin_is_no_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert read_guest_stdin(Source(PYTHON, inline="1"), 5) is None
    with pytest.raises(UsageError, match="closed"):
        read_code(Source(PYTHON))


def test_a_terminal_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = os.openpty()
    with os.fdopen(follower) as stdin, os.fdopen(leader, "wb", buffering=0):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert read_guest_stdin(Source(PYTHON, inline="1"), 5) is None
