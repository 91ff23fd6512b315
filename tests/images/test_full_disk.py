"""A full disk is the host's fault, at every step that writes an image, and leaves no unfinished file."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.image_roots import make_busybox

from warmcell.core.errors import ExecutionFailed
from warmcell.core.types import ExecResult
from warmcell.images import ImageStore, blobs, prune, records
from warmcell.images.blobs import BlobWriter
from warmcell.images.build import builder

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refuse(*_: Any, **__: Any) -> Any:
    raise FULL


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    make_busybox(tmp_path)
    return ImageStore(tmp_path / "store")


def unfinished(store: ImageStore) -> list[str]:
    return [str(path) for path in Path(store.path).rglob(".*")]


@pytest.mark.parametrize("place", [(BlobWriter, "write"), (blobs.BlobStore, "put_json"), (records, "write_record")])
def test_a_build_on_a_full_disk(
    store: ImageStore, tmp_path: Path, place: tuple[object, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "context").mkdir()
    (tmp_path / "context/Dockerfile").write_text("FROM busybox:1\nCOPY Dockerfile /\n")
    monkeypatch.setattr(*place, refuse)
    with pytest.raises(ExecutionFailed, match="No space left") as failure:
        store.build(tmp_path / "context", name="built:1")
    assert failure.value.fault == "host" and "image prune" in str(failure.value.hint)
    assert [image.name for image in store.list()] == ["busybox:1"]
    assert unfinished(store) == []


def test_a_command_that_fails_because_the_disk_is_full(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command only knows that it could not write; whether the disk is full is measured."""
    (tmp_path / "context").mkdir()
    (tmp_path / "context/Dockerfile").write_text("FROM busybox:1\nRUN fill\n")
    monkeypatch.setattr(builder, "find_runner", lambda: lambda _: ExecResult(stderr="cannot write", exit_code=1))
    monkeypatch.setattr(builder, "is_disk_full", lambda _: True)
    with pytest.raises(ExecutionFailed, match="No space left") as failure:
        store.build(tmp_path / "context", name="built:1")
    assert failure.value.fault == "host"
    assert prune.is_disk_full(str(tmp_path)) is False


@pytest.mark.parametrize(
    "work", [lambda store, _: store.tag("busybox:1", "b:2"), lambda store, to: store.export("busybox:1", to / "x.tar")]
)
def test_names_and_exports_on_a_full_disk(
    store: ImageStore, tmp_path: Path, work: Callable[[ImageStore, Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "write_record", refuse)
    monkeypatch.setattr("warmcell.images.export._Tar.add", refuse)
    with pytest.raises(ExecutionFailed, match="No space left"):
        work(store, tmp_path)
    assert not (tmp_path / "x.tar").exists() and unfinished(store) == []


def test_a_blob_whose_last_bytes_do_not_fit_leaves_no_file(tmp_path: Path) -> None:
    """Closing a file writes what is buffered, and fails."""
    writer = BlobWriter(str(tmp_path))
    writer._file.close()
    writer._file = open("/dev/full", "wb")  # noqa: SIM115
    writer.write(b"buffered")
    with pytest.raises(OSError, match="No space left"):
        writer.discard()
    assert list(tmp_path.iterdir()) == []
    writer.discard()


class LateFile(io.BufferedWriter):
    """A file of a file system that says only on closing that it could not write, such as one that uploads then."""

    def close(self) -> None:
        was_open = not self.closed
        super().close()
        if was_open:
            raise FULL


def test_a_blob_whose_file_cannot_be_closed_gets_no_name(tmp_path: Path) -> None:
    """With its name it would count as complete, and no later pull would fetch it again."""
    with pytest.raises(OSError, match="No space left"), BlobWriter(str(tmp_path)) as writer:
        writer._file.close()
        writer._file = LateFile(io.FileIO(str(writer._path), "r+"))
        writer.write(b"content")
        writer.commit()
    assert list(tmp_path.iterdir()) == []


def test_a_record_whose_file_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(OSError, match="No space left"):
        records.write_record(str(tmp_path), "name", {})
