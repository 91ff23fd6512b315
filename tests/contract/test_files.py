"""A request's arguments and files, and the files that a result carries."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.contract.conftest import Kind, Run
from tests.contract.programs import Exit, Save, Say, ShowArguments, ShowFile, Spin

from warmcell import ExecutionTimeout, InvalidRequest, Limits


def test_arguments_reach_the_program_as_they_are(run: Run) -> None:
    words = ["one", "two words", "", "{code}", "-c", "--", "\u00e9", "$HOME;`id`"]
    assert run(ShowArguments(), args=words).stdout.split("\0") == [*words, ""]
    assert run(ShowArguments()).stdout == ""


def test_files_are_there_and_those_asked_for_come_back(run: Run) -> None:
    files = {"data/deep/in.txt": "\u00e9\n", "raw.bin": bytes(range(256))}
    steps = (ShowFile("data/deep/in.txt"), Save("out.txt", "made"), Save("data/other.txt", "too"))
    result = run(*steps, files=files, fetch_files=["out.txt", "data/other.txt", "raw.bin", "missing.txt"])
    assert (result.stdout, result.exit_code) == ("\u00e9\n", 0)
    assert result.files == {"out.txt": b"made", "data/other.txt": b"too", "raw.bin": bytes(range(256))}
    assert result.denials == []


def test_files_are_fetched_however_the_program_ended(run: Run) -> None:
    assert run(Save("out.txt", "failed"), Exit(3), fetch_files=["out.txt"]).files == {"out.txt": b"failed"}
    with pytest.raises(ExecutionTimeout) as caught:
        run(Save("out.txt", "so far"), Spin(), fetch_files=["out.txt"], timeout=2)
    assert caught.value.result is not None
    assert caught.value.result.files == {"out.txt": b"so far"}


def test_nothing_of_it_is_in_the_next_run_or_left_on_the_host(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run(Save("left.txt", "x"), files={"given.txt": "x"}, fetch_files=["left.txt"])
    assert run(Say("x"), fetch_files=["left.txt", "given.txt"]).files == {}
    assert list(tmp_path.glob("warmcell-work-*")) == []


def test_files_count_against_the_disk_limit(kind: Kind, backend: Any) -> None:
    request = kind.request(Say("x"), files={"big": bytes(2 << 20)}, limits=Limits(disk_mb=1))
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(backend.execute(request))
    assert (caught.value.field, caught.value.fault) == ("files", "caller")
