"""The file of verdicts after interruptions of every kind."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from warmcell import InvalidRequest
from warmcell.evaluation.verdict_log import VerdictLog


def row(task: str, status: str = "accepted") -> dict[str, Any]:
    return {"task_id": task, "sample": 0, "status": status, "digest": "d"}


def test_a_line_that_was_cut_off_anywhere_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    whole = json.dumps(row("a")) + "\n"
    torn = json.dumps(row("b"))
    for length in range(len(torn) + 1):
        path.write_text(whole + torn[:length])
        log = VerdictLog(str(path))
        assert path.read_text() == whole
        log.append(row("c"))
        log.close()
        assert [each["task_id"] for each in log.rows()] == ["a", "c"]


def test_a_long_torn_line_is_removed_too(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    path.write_text('{"task_id": "' + "x" * 200_000)
    VerdictLog(str(path)).close()
    assert path.read_text() == ""
    path.write_text("x" * 200_000)
    with pytest.raises(InvalidRequest, match="not a file of verdicts"):
        VerdictLog(str(path))
    assert path.read_text() == "x" * 200_000


def test_a_compressed_file_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl.gz"
    packed = gzip.compress((json.dumps(row("a")) + "\n").encode(), compresslevel=0)
    assert b"\n" in packed and not packed.endswith(b"\n")  # as if its last line were torn
    path.write_bytes(packed)
    with pytest.raises(InvalidRequest, match=r"verdicts\.jsonl\.gz:1"):
        VerdictLog(str(path))
    assert path.read_bytes() == packed


def test_a_file_with_the_name_of_a_compressed_one_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl.gz"
    for task in "ab":
        log = VerdictLog(str(path))
        log.append(row(task))
        log.close()
    assert [each["task_id"] for each in log.rows()] == ["a", "b"]


def test_what_was_not_judged_is_removed_for_another_try(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    path.write_text(
        "".join(json.dumps(row(task, status)) + "\n" for task, status in [("a", "host_error"), ("b", "accepted")])
    )
    log = VerdictLog(str(path))
    log.append(row("c"))
    with pytest.raises(InvalidRequest, match="another evaluation"):
        VerdictLog(str(path))  # the lock is on the rewritten file
    log.close()
    assert [each["task_id"] for each in log.rows()] == ["b", "c"]
    assert [each.name for each in tmp_path.iterdir()] == ["verdicts.jsonl"]


@pytest.mark.parametrize("line", ["not JSON", "[]", '{"task_id": "a"}', json.dumps({**row("a"), "sample": "0"})])
def test_a_file_of_something_else_is_refused_and_kept(tmp_path: Path, line: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(line + "\n")
    with pytest.raises(InvalidRequest, match=r"notes\.txt:1"):
        VerdictLog(str(path))
    assert path.read_text() == line + "\n"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"out: .*no such file"):
        VerdictLog(str(tmp_path / "missing" / "x"))
    with pytest.raises(InvalidRequest, match="out: "):
        VerdictLog("/dev/null")


@pytest.mark.parametrize("content", ["a note", "first line\nlast line", json.dumps({"id": "a"})])
def test_a_file_of_something_else_keeps_its_last_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(InvalidRequest):
        VerdictLog(str(path))
    assert path.read_text() == content


def test_links_beside_and_in_place_of_the_file_are_not_followed(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("untouched")
    path = tmp_path / "verdicts.jsonl"
    path.symlink_to(canary)
    with pytest.raises(InvalidRequest, match="not a regular file"):
        VerdictLog(str(path))
    path.unlink()
    path.write_text(json.dumps(row("a", "host_error")) + "\n")
    (tmp_path / "verdicts.jsonl.new").symlink_to(canary)
    VerdictLog(str(path)).close()
    assert (canary.read_text(), path.read_text()) == ("untouched", "")


@pytest.mark.parametrize("change", [{"sample": 1 << 63}, {"sample": -1}, {"task_id": "\ud800"}, {"status": "\ud800"}])
def test_values_that_the_ledger_cannot_hold_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "verdicts.jsonl"
    path.write_text(json.dumps(row("a") | change) + "\n")
    with pytest.raises(InvalidRequest, match=r"verdicts\.jsonl:1"):
        VerdictLog(str(path))
