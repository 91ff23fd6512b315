"""The process of a build: it leaves a part of the disk free, as loads and pulls do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmcell import SandboxPolicy
from warmcell.core.errors import ExecutionFailed
from warmcell.images import ImageStore
from warmcell.images.progress import ImageProgress
from warmcell.interfaces.docker import build_process


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Any]:
    """What the server sends; the Dockerfile needs no cage."""
    context = tmp_path / "context"
    context.mkdir()
    for name in ("first", "second"):
        (context / name).write_text(name)
    (context / "Dockerfile").write_text("FROM scratch\nCOPY first /\nCOPY second /\n")
    return {
        "context": str(context),
        "dockerfile": "Dockerfile",
        "names": ["built:1"],
        "build_args": {},
        "target": "",
        "policy": SandboxPolicy().to_json(),
        "uses_cache": True,
    }


def fill_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> list[str]:
    """Make the disk full after so many checks; returns the stores that were checked."""
    checked: list[str] = []

    def check(store: str) -> None:
        checked.append(store)
        if len(checked) > after:
            raise ExecutionFailed("the disk is full")

    monkeypatch.setattr(build_process, "check_room", check)
    return checked


def test_the_disk_is_checked_before_each_step(
    store: ImageStore, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = fill_disk(monkeypatch, after=1)
    with pytest.raises(ExecutionFailed, match="the disk is full"):
        build_process._build(store, job)
    assert checked == [store.path] * 2 and store.list() == []
    said = capsys.readouterr().out
    assert "Step 1/2" in said and "Step 2/2" not in said


def test_the_disk_is_checked_while_a_base_image_arrives(
    store: ImageStore, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(_: ImageStore, reference: str, *, on_progress: Callable[[ImageProgress], None]) -> None:
        on_progress(ImageProgress("pull", reference, 1, 2))
        raise AssertionError("the pull went on")

    monkeypatch.setattr(ImageStore, "pull", pull)
    checked = fill_disk(monkeypatch, after=0)
    Path(job["context"], "Dockerfile").write_text("FROM missing:1\n")
    with pytest.raises(ExecutionFailed, match="the disk is full"):
        build_process._build(store, job)
    assert checked == [store.path]
