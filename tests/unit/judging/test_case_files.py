"""Cases as people keep them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from warmcell import Case, InvalidRequest
from warmcell.judging.case_files import read_cases


def lay_out(directory: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    return str(directory)


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"1.in": "i1", "1.out": "o1", "10.in": "i10", "10.out": "o10", "2.in": "i2", "2.out": "o2"}, ["1", "2", "10"]),
        ({"a.in": "ia", "a.ans": "oa", "notes.txt": ""}, ["a"]),
        ({"input/1.txt": "i1", "output/1.txt": "o1", "input/2.txt": "i2", "output/2.txt": "o2"}, ["1", "2"]),
        ({"input/input00.txt": "i00", "output/output00.txt": "o00"}, ["input00"]),
        ({"in/7": "i7", "out/7": "o7"}, ["7"]),
    ],
)
def test_the_usual_layouts(tmp_path: Path, files: dict[str, str], names: list[str]) -> None:
    cases = read_cases(lay_out(tmp_path, files))
    assert [case.name for case in cases] == names
    for case in cases:
        mark = case.name.removeprefix("input").encode()
        assert (case.stdin, case.expected) == (b"i" + mark, b"o" + mark)


def test_json_lines(tmp_path: Path) -> None:
    lines = [
        {"stdin": "a", "expected": "b"},
        {"input": "c", "output": "d", "timeout": 2, "memory_mb": 64, "name": "x"},
        {"expected": "e"},
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("\ufeff" + "\n\n".join(map(json.dumps, lines)) + "\n")
    expected = [Case("a", "b", name="1"), Case("c", "d", 2, 64, "x"), Case("", "e", name="5")]
    assert read_cases(str(path)) == expected
    assert read_cases(str(tmp_path)) == expected


def test_a_text_in_json_lines_may_contain_what_unicode_takes_for_an_end_of_line(tmp_path: Path) -> None:
    text = "a\u2028b\x85c"
    line = json.dumps({"stdin": text, "expected": text}, ensure_ascii=False)
    path = tmp_path / "cases.jsonl"
    path.write_bytes(f"{line}\r\n{line}".encode())
    assert read_cases(str(path)) == [Case(text, text, name="1"), Case(text, text, name="2")]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no cases"),
        ({"1.in": ""}, "1.out"),
        ({"input/1": "", "output/2": ""}, "has no counterpart"),
        ({"x.jsonl": "{"}, "x.jsonl:1: invalid JSON"),
        ({"x.jsonl": "[]"}, "not a JSON object"),
        ({"x.jsonl": '{"stdin": "a"}'}, "no field 'expected'"),
        ({"x.jsonl": '{"expected": 3}'}, "must be text"),
        ({"x.jsonl": '{"expected": "", "timeout": -1}'}, "timeout"),
    ],
)
def test_a_malformed_file_is_explained(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_cases(lay_out(tmp_path, files))
    assert message in caught.value.message
    assert caught.value.field == "cases"


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no such file"):
        read_cases(str(tmp_path / "nowhere"))


@pytest.mark.attack("S3-12")
@pytest.mark.parametrize("kind", ["fifo", "link", "device"])
def test_only_regular_files_are_cases(tmp_path: Path, kind: str) -> None:
    secret, directory = tmp_path / "secret", tmp_path / "cases"
    secret.write_text("canary")
    directory.mkdir()
    (directory / "1.out").write_text("")
    given = directory / "1.in"
    if kind == "fifo":
        os.mkfifo(given)
    else:
        given.symlink_to(secret if kind == "link" else "/dev/zero")
    with pytest.raises(InvalidRequest, match="not a regular file"):
        read_cases(str(directory))


@pytest.mark.attack("S3-12")
def test_linked_folders_are_not_followed(tmp_path: Path) -> None:
    elsewhere, directory = tmp_path / "elsewhere", tmp_path / "cases"
    for path in (elsewhere, directory, directory / "output"):
        path.mkdir()
    (elsewhere / "1.txt").write_text("canary")
    (directory / "output" / "1.txt").write_text("canary")
    (directory / "input").symlink_to(elsewhere)
    with pytest.raises(InvalidRequest):
        read_cases(str(directory))


@pytest.mark.attack("S3-12")
@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"stdin": ' + "[" * 900 + "]" * 900 + "}"], ids=["deep", "deep in stdin"]
)
def test_deep_json_is_a_typed_error(tmp_path: Path, line: str) -> None:
    (tmp_path / "cases.jsonl").write_text(line)
    with pytest.raises(InvalidRequest, match=r"cases\.jsonl:1"):
        read_cases(str(tmp_path / "cases.jsonl"))


@pytest.mark.attack("S3-12")
def test_a_fifo_in_place_of_a_file_of_cases(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cases.jsonl")
    with pytest.raises(InvalidRequest):
        read_cases(str(tmp_path / "cases.jsonl"))
