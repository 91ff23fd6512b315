"""Cases as people keep them."""

from __future__ import annotations

import json
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
        {"input": "c", "output": "d", "timeout": 2, "name": "x"},
        {"expected": "e"},
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("\ufeff" + "\n\n".join(map(json.dumps, lines)) + "\n")
    expected = [Case("a", "b", name="1"), Case("c", "d", 2, "x"), Case("", "e", name="5")]
    assert read_cases(str(path)) == expected
    assert read_cases(str(tmp_path)) == expected


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no cases"),
        ({"1.in": ""}, "1.out"),
        ({"input/1": "", "output/2": ""}, "no file of that name"),
        ({"x.jsonl": "{"}, "x.jsonl:1 is not JSON"),
        ({"x.jsonl": "[]"}, "not an object"),
        ({"x.jsonl": '{"stdin": "a"}'}, "no 'expected'"),
        ({"x.jsonl": '{"expected": 3}'}, "must be text"),
        ({"x.jsonl": '{"expected": "", "timeout": -1}'}, "timeout"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, files: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_cases(lay_out(tmp_path, files))
    assert said in caught.value.message
    assert caught.value.field == "cases"


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no such file"):
        read_cases(str(tmp_path / "nowhere"))
