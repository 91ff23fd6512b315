"""Which directories a toolchain shows to a guest: its own tree, never a home."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import require

from warmcell.core.errors import BackendUnavailable
from warmcell.enforcers import host
from warmcell.languages.config import ProcessConfig
from warmcell.languages.registry import find_toolchain
from warmcell.languages.toolchain import beside_usr, is_installation, symlink_chain, visible_paths
from warmcell.policy.places import is_within


def installed(tree: Path, *others: str) -> Path:
    """A program with a library beside it, and whatever else is there."""
    for part in ("bin", "lib"):
        (tree / part).mkdir(parents=True)
    program = tree / "bin" / "tool"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    for name in others:
        (tree / name).mkdir()
    return program


@pytest.mark.parametrize("others", [(), ("share", "include", "LICENSE", "README.md"), ("conda-meta", "qml")])
def test_a_tree_of_its_own_is_shown_whole(tmp_path: Path, others: tuple[str, ...]) -> None:
    assert visible_paths(str(installed(tmp_path / "tree", *others))) == (str(tmp_path / "tree"),)


@pytest.mark.attack("S2-15")
@pytest.mark.claim("WC-FS-1")
@pytest.mark.parametrize("neighbour", [".ssh", ".env", ".git", "src", "Documents", ".bashrc"])
def test_a_home_or_a_project_is_not(tmp_path: Path, neighbour: str) -> None:
    program = installed(tmp_path / "home", neighbour)
    assert visible_paths(str(program)) == (str(program),)
    assert not is_installation(str(tmp_path / "home"))


def test_a_program_beside_other_things_is_shown_alone(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    program = tmp_path / "tools" / "node"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    assert visible_paths(str(program)) == (str(program),)


@pytest.mark.attack("S2-15")
def test_libraries_that_it_is_linked_with_are_shown_with_it(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    require(compiler, "a C compiler")
    home = tmp_path / "home"
    program = installed(home, ".ssh")
    (tmp_path / "x.c").write_text("int f(void) { return 7; }")
    (tmp_path / "m.c").write_text("int f(void); int main(void) { return f(); }")
    subprocess.run([compiler, "-shared", "-o", home / "lib/libx.so.1", tmp_path / "x.c"], check=True)
    (home / "lib/libx.so").symlink_to("libx.so.1")
    link = ["-L", home / "lib", "-lx", "-Wl,-rpath,$ORIGIN/../lib"]
    subprocess.run([compiler, "-o", program, tmp_path / "m.c", *link], check=True)
    shown = visible_paths(str(program))
    assert sorted(shown) == [str(program), str(home / "lib/libx.so")]


def test_what_usr_has_needs_no_mention() -> None:
    assert visible_paths("/usr/bin/env") == ()


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
    assert host.query_tool(["/bin/sh", "-c", 'pwd; echo "[$NODE_OPTIONS]"']) == "/\n[]"
    with pytest.raises(BackendUnavailable, match="does not work: last words"):
        host.query_tool(["/bin/sh", "-c", "echo first >&2; echo last words >&2; exit 3"])
    with pytest.raises(BackendUnavailable, match="did not answer"):
        host.query_tool(["/bin/sleep", "5"], timeout=0.1)


def test_looking_for_go_does_not_compile_its_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from warmcell.languages import go

    toolchain = go.GoToolchain("/opt/go/bin/go", "/opt/go", "go version go1.22 linux/amd64")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(go, "find_go", lambda: toolchain)
    monkeypatch.setattr(go, "_compile_library", lambda *_: pytest.fail("compiled"))
    assert "compiled when Go is first used" in find_toolchain("go", ProcessConfig())
    os.makedirs(go._library_place(toolchain), mode=0o700)
    assert find_toolchain("go", ProcessConfig()) == "/opt/go/bin/go"
