"""Files and arguments of a request: what is refused, by name, before anything runs."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from warmcell.core.errors import InvalidRequest, PathTraversal
from warmcell.core.request_checks import MAX_ARGUMENT_BYTES, MAX_FILE_BYTES, MAX_FILES
from warmcell.core.types import ExecRequest, ExecResult


def request(**changes: Any) -> ExecRequest:
    return ExecRequest("python", "pass", 5, **changes)


def test_what_was_given_is_kept_as_bytes_and_plain_paths() -> None:
    made = request(args=["a", ""], files={"./data//x.txt": "\u00e9", "b": b"\0"}, fetch_files=["out/", "out", "./b"])
    assert made.args == ("a", "")
    assert made.files == {"data/x.txt": "\u00e9".encode(), "b": b"\0"}
    assert made.fetch_files == ("out", "b")


def test_a_request_with_files_is_as_fixed_as_any() -> None:
    made = request(files={"a": "1"})
    with pytest.raises(TypeError):
        made.files["b"] = b"2"  # type: ignore[index]
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(request(files={"a": b"1"}))
    assert request().files == {}


PATHS = [
    "/etc/passwd",
    "../x",
    "a/../../x",
    "a/..",
    "a\\b",
    "C:x",
    "~/x",
    "a\0b",
    "",
    "a" * 256,
    "a/" * 3000,
    "\ud800",
    3,
    None,
]


@pytest.mark.attack("WS-01")
@pytest.mark.parametrize("path", PATHS, ids=[repr(path)[:20] for path in PATHS])
@pytest.mark.parametrize("field", ["files", "fetch_files"])
def test_a_path_that_leads_out_is_refused(field: str, path: Any) -> None:
    with pytest.raises(PathTraversal) as caught:
        request(**{field: {path: b""} if field == "files" else [path]})
    assert caught.value.fault == "caller"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"files": {".": b""}}, "files"),
        ({"fetch_files": ["."]}, "fetch_files"),
        ({"files": [("a", b"")]}, "files"),
        ({"files": {"a": 3}}, "files['a']"),
        ({"files": {"a": b"", "./a": b""}}, "files"),
        ({"files": {"a": b"", "a/b/c": b""}}, "files"),
        ({"files": {str(n): b"" for n in range(MAX_FILES + 1)}}, "files"),
        ({"files": {"a": bytes(MAX_FILE_BYTES), "b": b"x"}}, "files"),
        ({"fetch_files": "out.txt"}, "fetch_files"),
        ({"fetch_files": [str(n) for n in range(MAX_FILES + 1)]}, "fetch_files"),
        ({"args": "one"}, "args"),
        ({"args": [1]}, "args"),
        ({"args": ["a\0b"]}, "args"),
        ({"args": ["x" * MAX_ARGUMENT_BYTES]}, "args"),
        ({"args": ["x" * 1000] * 2000}, "args"),
    ],
)
def test_what_is_wrong_is_named_by_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(**changes)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": {str(n): b"" for n in range(MAX_FILES + 1)}}, f"files: has more than {MAX_FILES} entries"),
        ({"files": {"a": b"", "./a": b""}}, "files: has the same path twice"),
        ({"files": {"a": b"", "a/b": b""}}, "files: has 'a' as a file and as the directory of 'a/b'"),
        ({"fetch_files": [str(n) for n in range(MAX_FILES + 1)]}, f"fetch_files: has more than {MAX_FILES} paths"),
    ],
)
def test_the_field_and_the_message_are_a_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(**changes)
    assert caught.value.message == message


def test_files_of_a_result_are_base64_in_json() -> None:
    plain = json.loads(ExecResult(files={"a": b"\xff"}).to_json())
    assert plain["files"] == {"a": "/w=="}
