"""Sandbox over the WASM toolbox: the same object, no isolation needed from the operating system."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import require

from warmcell.core.errors import CommandNotFound, ExecutionTimeout, PathTraversal, SandboxDestroyed
from warmcell.sandbox.blocking import MountPoint, Sandbox
from warmcell.toolbox.loader import toolbox_commands
from warmcell.workspace.errors import WorkspaceError


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    require(importlib.util.find_spec("wasmtime"), "wasmtime is not installed")
    require("sh" in toolbox_commands(), "the toolbox is not built")
    with Sandbox(backend="wasm", timeout=30) as made:
        yield made


@pytest.fixture
def sandbox(shared: Sandbox) -> Iterator[Sandbox]:
    """One sandbox for all tests of this file, emptied after each."""
    yield shared
    shared.sh("rm -rf /work/* /work/.??*")
    for entry in shared.list_dir():
        os.unlink(f"{shared.work_dir}/{entry.name}")


def test_guest_and_host_share_the_files(sandbox: Sandbox) -> None:
    sandbox.write_file("in.txt", "b\na\n")
    result = sandbox.sh("pwd; sort in.txt | tee out.txt; mkdir d; echo x > d/y")
    assert (result.stdout, result.stderr, result.exit_code) == ("/work\na\nb\n", "", 0)
    assert sandbox.read_text("out.txt") == "a\nb\n"
    assert [(change.path, change.kind) for change in sandbox.diff()] == [
        ("d/y", "created"),
        ("in.txt", "created"),
        ("out.txt", "created"),
    ]


def test_output_is_delivered_as_it_arrives(sandbox: Sandbox) -> None:
    def let_it_end(text: str) -> None:
        if text == "waiting\n":
            sandbox.write_file("go", "")

    script = "echo waiting; while [ ! -e go ]; do :; done; echo went >&2"
    heard: list[str] = []
    result = sandbox.sh(script, on_stdout=let_it_end, on_stderr=heard.append, timeout=50)
    assert (result.stdout, result.stderr, heard) == ("waiting\n", "went\n", ["went\n"])
    sandbox.exec("echo", ["x"], on_stdout=heard.append)
    assert heard == ["went\n", "x\n"]


def test_a_command_gets_exactly_its_arguments(sandbox: Sandbox) -> None:
    arguments = ["a b", "", "'", "$HOME", "*", "; exit 9", "é"]
    assert sandbox.exec("printf", ["%s|", *arguments]).stdout == "".join(f"{item}|" for item in arguments)


def test_missing_commands_cwd_stdin_and_env(sandbox: Sandbox) -> None:
    with pytest.raises(CommandNotFound):
        sandbox.exec("no-such-command")
    assert sandbox.sh("no-such-command").exit_code == 127
    sandbox.write_file("plain.txt", "text")
    for command in ("/etc/passwd", "./plain.txt", "./missing", "A=b"):
        with pytest.raises(CommandNotFound):
            sandbox.exec(command)
    forged = sandbox.exec("sh", ["-c", "echo kept; echo 'sh: 1: foo: not found' >&2; exit 127"])
    assert (forged.stdout, forged.stderr, forged.exit_code) == ("kept\n", "sh: 1: foo: not found\n", 127)
    sandbox.mkdir("sub")
    assert sandbox.exec("pwd", cwd="sub").stdout == "/work/sub\n"
    assert sandbox.exec("cat", stdin="in").stdout == "in"


def test_available_tools_match_the_installation(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = sandbox.available_tools()
    assert tools == sorted(set(tools)) and {"sh", "cat", "jq", "node", "git"} <= set(tools)
    assert "no-such-command" not in tools
    monkeypatch.setattr("warmcell.toolbox.python_component.is_cached", lambda: False)
    monkeypatch.setattr("warmcell.toolbox.python_component.COMPONENTIZE_PY", "0")
    assert set(tools) - set(sandbox.available_tools()) <= {"python", "python3"}
    assert "python3" not in sandbox.available_tools()


@pytest.mark.attack("FS-03")
def test_a_cwd_elsewhere_is_refused(sandbox: Sandbox) -> None:
    for cwd in ("/etc", "/", "..", "/tmp", "/work/../etc"):
        with pytest.raises(PathTraversal):
            sandbox.sh("pwd", cwd=cwd)


def test_mounts_and_environment(tmp_path: Path, shared: Sandbox) -> None:
    for name in ("read", "write"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    mounts = [MountPoint(tmp_path / "read", "/data"), MountPoint(tmp_path / "write", "/data2", writable=True)]
    with Sandbox(backend="wasm", mounts=mounts, env={"GREETING": "hi"}) as sandbox:
        result = sandbox.sh("cat /data/f /data2/f; echo $GREETING; echo x > /data2/new; echo x > /data/new")
        assert result.stdout == "readwritehi\n"
        assert result.exit_code != 0
    assert os.listdir(tmp_path / "read") == ["f"]
    assert sorted(os.listdir(tmp_path / "write")) == ["f", "new"]


@pytest.mark.attack("WS-02")
def test_links_that_a_guest_plants_are_not_followed(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("canary")
    sandbox.sh(f"ln -s {tmp_path}/target leaf; ln -s {tmp_path} middle; ln -s ../../../../../../..{tmp_path} relative")
    for link, points_at in (("leaf", tmp_path / "target"), ("middle", tmp_path), ("relative", tmp_path)):
        if not os.path.lexists(f"{sandbox.work_dir}/{link}"):
            os.symlink(points_at, f"{sandbox.work_dir}/{link}")  # WASI may refuse to make it; the host must cope anyway
    for name in ("leaf", "middle/target", "middle/new", "relative/target"):
        for call in (sandbox.read_file, lambda path: sandbox.write_file(path, "evil"), sandbox.remove):
            with pytest.raises((PathTraversal, WorkspaceError)):
                call(name)
        assert "canary" not in sandbox.sh(f"cat {name}; echo evil > {name}").stdout
    assert os.listdir(tmp_path) == ["target"]
    assert (tmp_path / "target").read_text() == "canary"


def test_a_timeout_and_destroy_while_running(shared: Sandbox) -> None:
    sandbox = Sandbox(backend="wasm")
    with pytest.raises(ExecutionTimeout):
        sandbox.sh("while :; do :; done", timeout=0.5)
    outcome: list[BaseException] = []

    def run() -> None:
        try:
            sandbox.sh("sleep 30")
        except BaseException as error:
            outcome.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    threading.Event().wait(0.5)
    sandbox.destroy()
    runner.join(10)
    assert [type(error) for error in outcome] == [SandboxDestroyed]
    assert not os.path.exists(sandbox.work_dir)
