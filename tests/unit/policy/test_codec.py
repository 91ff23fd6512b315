"""The last details of a policy's text: sizes, names of languages, lines, spelling. Each once went unnoticed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from warmcell.core.errors import InvalidRequest, PolicyViolation
from warmcell.policy.codec import MAX_FILE_BYTES, RecordSchema, from_json
from warmcell.policy.model import AllowedPath, OwnPath, SandboxPolicy


def refusal(path: Path) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        SandboxPolicy.from_file(path)
    return caught.value


def test_a_file_may_have_a_mebibyte_and_not_a_byte_more(tmp_path: Path) -> None:
    assert MAX_FILE_BYTES == 1_048_576
    path = tmp_path / "p.json"
    path.write_bytes(b"{}".ljust(1_048_576))
    assert SandboxPolicy.from_file(path) == SandboxPolicy()
    path.write_bytes(b"{}".ljust(1_048_577))
    assert refusal(path).message == f"policy: {str(path)!r} is larger than 1048576 bytes"


def test_an_unreadable_file_is_reported_with_the_system_error(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert refusal(path).message == f"policy: cannot read {str(path)!r}: no such file or directory"
    assert refusal(Path("a\0b.toml")).message == "policy: cannot read 'a\\x00b.toml': embedded null byte"


@pytest.mark.parametrize(("name", "language"), [("p.toml", "TOML"), ("p.json", "JSON")])
def test_an_error_names_the_language_that_was_expected(tmp_path: Path, name: str, language: str) -> None:
    path = tmp_path / name
    path.write_text("= nothing")
    assert refusal(path).message.startswith(f"policy: {str(path)!r}: not {language}: ")
    with pytest.raises(InvalidRequest, match=r"^policy: not JSON: "):
        SandboxPolicy.from_json("= nothing")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("unknown = 1\n", 1),
        ("\nenv = {}\nunknown = 1\n", 3),
        ("# unknown-keys, my_unknown and unknowns are other words\nunknown = 1\n", 2),
        ("# unknown\nunknown = 1\n", None),
    ],
)
def test_the_line_is_reported_if_the_key_occurs_once(tmp_path: Path, text: str, line: int | None) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    place = f"line {line}: " if line else ""
    assert refusal(path).message == f"{str(path)!r}: {place}unknown: unknown key"


@pytest.mark.parametrize(("text", "field"), [("{%s}", "%s"), ('{"limits": {%s}}', "limits.%s")])
def test_a_long_key_is_shortened(text: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SandboxPolicy.from_json(text % ('"' + "k" * 50 + '": 1'))
    assert caught.value.field == field % ("k" * 40)


def test_text_is_spelt_as_it_is() -> None:
    policy = SandboxPolicy((AllowedPath("/données"),))
    assert "/données" in policy.to_json()
    assert SandboxPolicy.from_json(policy.to_json()) == policy


def test_a_directory_of_a_sandbox_is_part_of_the_text() -> None:
    """It was an empty object: all sandboxes had the same policy in the logs, and nothing could read the text."""
    own, other = (SandboxPolicy(allowed_paths=(kind("/data"),)) for kind in (OwnPath, AllowedPath))
    assert own.to_json() == other.to_json()
    assert SandboxPolicy.from_json(own.to_json()) == other


def test_a_mistake_in_a_record_is_reported_by_its_key() -> None:
    with pytest.raises(InvalidRequest) as caught:
        SandboxPolicy.from_json('{"allowedPaths": [{"path": "/a"}, {"path": "/b", "colour": 1}]}')
    assert caught.value.field == "allowedPaths[1].colour"
    with pytest.raises(PolicyViolation) as refused:
        SandboxPolicy.from_json('{"allowedPaths": [{"path": "relative"}]}')
    assert refused.value.message == "line 1: allowedPaths[0]: path must be absolute, not 'relative'"
    with pytest.raises(InvalidRequest) as caught:
        SandboxPolicy.from_json('{"allowedPaths": [{"mode": "read"}]}')
    assert caught.value.field == "allowedPaths[0].path"


def test_a_form_does_not_change() -> None:
    schema = RecordSchema("policy", SandboxPolicy, {}, {}, lambda made: None)
    with pytest.raises((AttributeError, dataclasses.FrozenInstanceError)):
        schema.name = "other"  # type: ignore[misc]
    assert from_json(schema, "{}") == SandboxPolicy()
