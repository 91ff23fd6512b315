"""The copy of /home/user that a template keeps for its sandboxes. A tenant's steps choose what is in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.images.image_files import Layout, directory, entry, hardlink, layer, symlink

from warmcell.images import Image, ImageStore
from warmcell.interfaces.serve.e2b.template_build import BuildCancelled, copy_home_of
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.remove import remove_directory

pytestmark = [pytest.mark.needs("linux")]


def image_of(tmp_path: Path, data: bytes) -> Image:
    return ImageStore(tmp_path / "store").import_(Layout([data]).write(tmp_path / "layout"), "template:1")


def test_files_directories_and_links_are_copied(tmp_path: Path) -> None:
    entries = [
        entry("home/user/a", b"one", mode=0o755),
        hardlink("home/user/b", "home/user/a"),
        symlink("home/user/link", "/etc/passwd"),
        entry("home/user/below/c", b"two"),
        directory("home/user/empty"),
        entry("outside", b"three"),
    ]
    home = tmp_path / "home"
    copy_home_of(image_of(tmp_path, layer(*entries)), str(home), 1, lambda: None)
    assert sorted(os.listdir(home)) == ["a", "b", "below", "empty", "link"]
    assert (home / "a").read_bytes() == b"one" == (home / "b").read_bytes()
    assert (home / "below/c").read_bytes() == b"two" and os.listdir(home / "empty") == []
    assert os.readlink(home / "link") == "/etc/passwd"
    assert stat.S_IMODE((home / "a").stat().st_mode) == 0o755


def test_hard_links_cannot_fill_the_disk(tmp_path: Path) -> None:
    """One file of 2 GB with 100,000 names is within the limits of a step, and was copied 100,000 times."""
    links = [hardlink(f"home/user/{number}", "home/user/first") for number in range(40)]
    image = image_of(tmp_path, layer(entry("home/user/first", bytes(256 << 10)), *links))
    with pytest.raises(LimitExceeded, match="more than the 4 MB that /home/user"):
        copy_home_of(image, str(tmp_path / "home"), 4, lambda: None)
    assert sum(file.stat().st_size for file in (tmp_path / "home").iterdir()) <= 4 << 20


def test_a_deep_home_is_copied(tmp_path: Path) -> None:
    """It raised RecursionError, which the client saw as an error of the server."""
    inside = "d/" * 1500 + "file"
    try:
        image = image_of(tmp_path, layer(entry(f"home/user/{inside}", b"deep")))
        copy_home_of(image, str(tmp_path / "home"), 64, lambda: None)
        assert (tmp_path / "home" / inside).read_bytes() == b"deep"
    finally:
        for name in ("home", "store"):
            remove_directory(str(tmp_path / name))  # pytest's own removal is recursive


def test_a_cancelled_build_does_not_copy_on(tmp_path: Path) -> None:
    def check() -> None:
        raise BuildCancelled

    image = image_of(tmp_path, layer(entry("home/user/a", b"one"), entry("home/user/b", b"two")))
    with pytest.raises(BuildCancelled):
        copy_home_of(image, str(tmp_path / "home"), 1, check)
    assert os.listdir(tmp_path / "home") == []
