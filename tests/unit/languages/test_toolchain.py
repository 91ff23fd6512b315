"""Which directories a toolchain shows to a guest: its own tree, never a home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.core.errors import BackendUnavailable
from warmcell.enforcers import host
from warmcell.languages.toolchain import beside_usr, install_tree, is_shared, symlink_chain
from warmcell.policy.places import is_within


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOME", "/home/someone")
    return "/home/someone"


@pytest.mark.parametrize("path", ["/", "/home", "/opt", "/home/someone", "/home/someone/.local", "/etc", "/tmp"])
def test_collections_of_unrelated_things_are_shared(path: str, home: str) -> None:
    assert is_shared(path)


@pytest.mark.parametrize(
    "path", ["/opt/node", "/home/someone/.nvm/v22", "/home/someone/.local/lib", "/home/someonelse"]
)
def test_a_tree_of_its_own_is_not(path: str, home: str) -> None:
    assert not is_shared(path)


@pytest.mark.parametrize(
    ("program", "tree"),
    [
        ("/opt/node/bin/node", "/opt/node"),
        ("/opt/tool/node", "/opt/tool"),
        ("/home/someone/.local/bin/node", "/home/someone/.local/bin"),
        ("/home/someone/bin/node", "/home/someone/bin"),
        ("/home/someone/node", "/home/someone/node"),
        ("/opt/bin/node", "/opt/bin"),
    ],
)
def test_install_tree_is_as_small_as_it_can_be(program: str, tree: str, home: str) -> None:
    assert install_tree(program) == tree


@given(st.lists(st.text("/abusr.", min_size=1).map(lambda tail: os.path.normpath("/" + tail.lstrip("/")))))
def test_beside_usr_covers_everything_once(paths: list[str]) -> None:
    kept = beside_usr(paths)
    assert all(is_within(path, "/usr") or any(is_within(path, other) for other in kept) for path in paths)
    assert not any(a != b and is_within(a, b) for a in kept for b in kept)


def test_usr_and_its_links_need_no_mention() -> None:
    assert beside_usr(["/usr", "/usr/local/lib", "/opt/x", "/opt/x/bin", "/opt/xy"]) == ("/opt/x", "/opt/xy")
    if Path("/bin").is_symlink():
        assert beside_usr(["/bin", "/lib/x"]) == ()


def test_a_link_into_usr_is_kept_because_the_cage_must_hold_the_link(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to("/usr/bin/env")
    assert beside_usr([str(tmp_path)]) == (str(tmp_path),)
    assert symlink_chain(str(tmp_path / "python"))[:2] == [str(tmp_path / "python"), "/usr/bin/env"]


def test_a_circle_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert len(symlink_chain(str(tmp_path / "a"))) <= 40


def test_programs_are_never_found_through_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node").write_text("#!/bin/sh\n")
    (tmp_path / "node").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for search in ("", ".", f".:{os.sep}nowhere", ":"):
        assert host.find_program("node", search) is None
    assert host.find_program("node", str(tmp_path)) == str(tmp_path / "node")


def test_a_package_that_is_not_there_has_no_program() -> None:
    assert host.find_in_wheel("no_such_package_here", "bin", "node") is None
    assert host.find_in_wheel("json", "bin", "node") is None


def test_questions_are_asked_in_the_root_directory_and_errors_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_OPTIONS", "--bad")
    assert host.ask(["/bin/sh", "-c", 'pwd; echo "[$NODE_OPTIONS]"']) == "/\n[]"
    with pytest.raises(BackendUnavailable, match="does not work: last words"):
        host.ask(["/bin/sh", "-c", "echo first >&2; echo last words >&2; exit 3"])
    with pytest.raises(BackendUnavailable, match="did not start"):
        host.ask(["/bin/sleep", "5"], timeout=0.1)
