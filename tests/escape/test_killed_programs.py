"""What a program that is killed leaves behind, the next start of the same user removes; of anybody else's, nothing."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.escape.harness import settled
from tests.helpers import in_a_fork

import warmcell
from warmcell.lifetime import held_directories
from warmcell.lifetime.held_directories import PREFIXES, abandoned, hold, make_held
from warmcell.toolbox.signed_directory import SignedDirectory
from warmcell.workspace import private_directory
from warmcell.workspace.private_directory import PrivateDirectory, sweep
from warmcell.workspace.workspace import Workspace

_SOURCE = os.path.dirname(os.path.dirname(warmcell.__file__))

#: Sandboxes of every class with runs, snapshots and builds under way, for ever.
_BUSY = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from warmcell import ProcessBackend, Sandbox, ExecRequest
def sandboxes(backend):
    while True:
        with Sandbox(backend=backend) as sandbox:
            sandbox.write_file("a/b/c.txt", "x")
            sandbox.snapshot()
            sandbox.sh("mkdir -p d/e; chmod 0 d; echo x >f")
def backends(enforcer, language, code):
    while True:
        with ProcessBackend(enforcer=enforcer) as backend:
            for number in range(3):
                backend.execute_blocking(ExecRequest(language, code.replace("SEED", str(number)), 20))
work = [(sandboxes, "process"), (sandboxes, "wasm"), (backends, "landlock", "command", "mkdir -p a/b; chmod 0 a; echo x"),
        (backends, "bubblewrap", "python", "print(1)"), (backends, "auto", "c", "int main(void) { return SEED; }")]
for function, *arguments in work:
    threading.Thread(target=function, args=arguments, daemon=True).start()
print("up", flush=True)
threading.Event().wait()
"""
_NEXT = """
import sys
sys.path.insert(0, sys.argv[1])
from warmcell import ProcessBackend, ExecRequest
with ProcessBackend() as backend:
    print(backend.execute_blocking(ExecRequest("c", "int main(void) { return 7; }", 60)).exit_code)
"""


def left_in(place: Path) -> list[str]:
    found = [str(path) for path in (place / "tmp").iterdir() if path.name.startswith("warmcell")]
    builds = place / "cache" / "warmcell" / "builds"
    return found + ([str(path) for path in builds.iterdir() if path.name.startswith(".")] if builds.exists() else [])


def groups_of(pids: list[int]) -> list[str]:
    """Control groups that programs with these process ids made, wherever that was."""
    names = tuple(f"warmcell.home.{pid}." for pid in pids)
    tree = os.walk("/sys/fs/cgroup")
    return [os.path.join(folder, name) for folder, found, _ in tree for name in found if name.startswith(names)]


@pytest.mark.attack("S2-21")
@pytest.mark.needs("user namespaces", "bwrap")
def test_after_a_kill_the_next_start_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    places = {"TMPDIR": str(tmp_path / "tmp"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env = {**os.environ, **places}
    moments = random.Random(21)
    seen, killed = 0, []
    for _ in range(4):
        command = [sys.executable, "-c", _BUSY, _SOURCE]
        program = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert program.stdout is not None and program.stdout.readline() == "up\n"
        assert settled(lambda: bool(left_in(tmp_path)), 30.0)
        time.sleep(moments.uniform(0, 1.5))
        program.send_signal(signal.SIGKILL)
        program.wait()
        program.stdout.close()
        killed.append(program.pid)
        seen += len(left_in(tmp_path))
    assert seen, "the test must leave something to be swept"
    after = subprocess.run([sys.executable, "-c", _NEXT, _SOURCE], env=env, capture_output=True, text=True, check=False)
    assert after.stdout == "7\n", after.stderr
    assert settled(lambda: left_in(tmp_path) == [], 5.0), left_in(tmp_path)
    assert groups_of(killed) == []


@pytest.mark.attack("S2-21")
def test_what_somebody_holds_is_left_alone(tmp_path: Path) -> None:
    mine = make_held("warmcell-work-", str(tmp_path))
    left = tmp_path / "warmcell-work-left"
    left.mkdir()
    (left / "deep").mkdir(0o000)
    sweep(str(tmp_path), PREFIXES)
    assert os.listdir(tmp_path) == [os.path.basename(mine.path)]
    mine.let_go()
    sweep(str(tmp_path), PREFIXES)
    assert os.listdir(tmp_path) == []


@pytest.mark.attack("S2-21")
def test_only_directories_of_ours_are_taken_for_leftovers(tmp_path: Path) -> None:
    """Links, files and other names stay, and what a link names most of all."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (tmp_path / "warmcell-work-link").symlink_to(tmp_path / "precious")
    (tmp_path / "warmcell-work-file").write_text("x")
    (tmp_path / "warmcell-notes").mkdir()
    (tmp_path / "warmcell-work-inner").mkdir()
    (tmp_path / "warmcell-work-inner" / "out").symlink_to(tmp_path / "precious")
    sweep(str(tmp_path), PREFIXES)
    names = {"precious", "warmcell-work-link", "warmcell-work-file", "warmcell-notes"}
    assert set(os.listdir(tmp_path)) == names and (tmp_path / "precious" / "file").read_text() == "x"


@pytest.mark.attack("S2-21")
@pytest.mark.root
def test_directories_of_other_users_are_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "warmcell-work-theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    assert list(abandoned(str(tmp_path), PREFIXES)) == [] and hold(str(theirs)) is None
    sweep(str(tmp_path), PREFIXES)
    assert theirs.exists()


@pytest.mark.attack("S2-21")
def test_a_fork_that_ends_takes_nothing_with_it_and_keeps_alive_what_it_uses(tmp_path: Path) -> None:
    workspace = Workspace()
    try:
        assert in_a_fork(workspace.close, ends="sys.exit") is None
        assert os.path.isdir(workspace.host_path)
        workspace.write_file("still", "here")
    finally:
        workspace.close()
    assert not os.path.exists(workspace.host_path)


@pytest.mark.attack("S2-21")
def test_a_sweep_between_making_and_holding_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def swept_first(path: str, **more: bool) -> object:
        if len(taken) < 3:
            taken.append(path)
            os.rmdir(path)
        return hold(path, **more)

    monkeypatch.setattr(held_directories, "hold", swept_first)
    held = make_held("warmcell-work-", str(tmp_path))
    assert os.path.isdir(held.path) and held.path not in taken and len(taken) == 3
    held.let_go()


@pytest.mark.attack("S2-21")
def test_a_private_directory_is_gone_with_close_however_it_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(private_directory, "_has_swept", True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = PrivateDirectory("run")
    os.makedirs(os.path.join(made.path, "a", "b"))
    os.chmod(os.path.join(made.path, "a"), 0)
    made.close()
    made.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.attack("S2-21")
def test_files_that_nobody_writes_any_more_are_swept_from_the_caches(tmp_path: Path) -> None:
    kept = tmp_path / "cache"
    SignedDirectory(kept)
    for name in (".left.signed.0", ".held.signed.0"):
        (kept / name).write_text("half")
        os.utime(kept / name, (1, 1))
    (kept / ".young.signed.0").write_text("half")
    with (kept / ".held.signed.0").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        SignedDirectory(kept)
        assert {path.name for path in kept.glob(".*")} == {".held.signed.0", ".young.signed.0"}
    SignedDirectory(kept)
    assert {path.name for path in kept.iterdir()} == {"secret", ".young.signed.0"}
