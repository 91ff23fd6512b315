"""What a server keeps below `--state` with a key: encrypted, and bound to its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.saved_state import SANDBOXES, SavedState
from warmcell.interfaces.serve.server import hold_state
from warmcell.interfaces.serve.state_encryption import KEY_VARIABLE, PIECE, read_key
from warmcell.sessions.image import SessionImage

pytest.importorskip("cryptography")
KEY, OTHER = "1a" * 32, "2b" * 32
pytestmark = pytest.mark.needs("linux")


def test_records_are_encrypted_and_stay_where_they_were(tmp_path: Path) -> None:
    state = SavedState(str(tmp_path), 0, KEY)
    documents = [{"id": name, "created": name, "secret": "canary"} for name in ("a", "b")]
    for document in documents:
        state.put(SANDBOXES, document["id"], document)
    assert state.documents(SANDBOXES) == documents
    first, second = sorted((Path(state.path) / SANDBOXES).iterdir())
    assert b"canary" not in first.read_bytes() and first.stat().st_mode & 0o777 == 0o600
    second.write_bytes(first.read_bytes())
    assert state.documents(SANDBOXES) == documents[:1]
    first.write_bytes(first.read_bytes()[:5])
    assert state.documents(SANDBOXES) == []
    state.close()


@pytest.mark.parametrize("key", [KEY, None])
def test_variables_of_a_session_are_whole_or_refused(tmp_path: Path, key: str | None) -> None:
    state, content = SavedState(str(tmp_path), 0, key), b"canary" + bytes(PIECE + 5)
    image = SessionImage(2 * PIECE)
    image.add(content)
    name, other = state.keep_image(image), state.keep_image(image)
    image.close()
    with_room = state.load_image(name, 2 * PIECE)
    assert b"".join(with_room.pieces()) == content
    with_room.close()
    with pytest.raises(InvalidRequest, match="take more than 1 MB"):
        state.load_image(name, PIECE)
    path = Path(state.path) / "sessions" / name
    stored = path.read_bytes()
    assert (b"canary" in stored) == (key is None)
    for damaged in (stored[:-1], stored[:100], b"\xff" * 100, b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError):
            state.load_image(name, 2 * PIECE)
    if key is not None:
        (path.parent / other).write_bytes(stored)
        with pytest.raises(ValueError, match="another key"):
            state.load_image(other, 2 * PIECE)
    state.close()


def test_another_key_is_refused(tmp_path: Path) -> None:
    for place, first, later in (("one", KEY, OTHER), ("two", KEY, None), ("three", None, KEY)):
        directory = str(tmp_path / place)
        hold_state(directory, 1, first).release()
        with pytest.raises(InvalidRequest, match="was written with"):
            hold_state(directory, 1, later)
        hold_state(directory, 1, first).release()


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ('{"version": 1, "workers": 1, "key": "%s"}', "has the layout 1, not 2"),
        ('{"version": 9, "workers": 1, "key": "%s"}', "has the layout 9"),
        ("", "cannot use"),
        ("[" * 2000, "cannot use"),
        ('{"version": 2, "workers": 1, "key": ["%s"]}', "is damaged"),
    ],
)
def test_a_layout_of_another_version_or_none(tmp_path: Path, layout: str, reason: str) -> None:
    hold_state(str(tmp_path), 1, KEY).release()
    path = tmp_path / "layout.json"
    fingerprint = json.loads(path.read_text())["key"]
    path.write_text(layout.replace("%s", fingerprint))
    for _ in range(2):  # it was let go
        with pytest.raises(InvalidRequest, match=reason):
            hold_state(str(tmp_path), 1, KEY)


def test_plain_files_must_not_be_in_an_encrypted_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with pytest.raises(InvalidRequest, match="the temporary directory"):
        hold_state(str(tmp_path), 1, KEY)
    hold_state(str(tmp_path), 1).release()


def test_the_key_is_in_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert read_key(None) is None
    monkeypatch.setenv(KEY_VARIABLE, OTHER)
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    assert (read_key(None), read_key(str(file))) == (OTHER, KEY)
    file.write_text("short")
    for path, reason in ((file, "64 hexadecimal digits"), (tmp_path / "missing", "cannot read the key")):
        with pytest.raises(InvalidRequest, match=reason):
            read_key(str(path))
