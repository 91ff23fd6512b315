"""`--changes`, `--commit`, `--discard` and `--patch` of `warmcell shell` and `warmcell run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from tests.helpers import until
from tests.unit.interfaces.cli.command import COMMAND
from tests.unit.interfaces.cli.terminal import PATIENT, Terminal

from warmcell.changes.layer import ChangeLayer
from warmcell.core.errors import ExecutionFailed
from warmcell.interfaces.cli.review_changes import review
from warmcell.workspace.root import Root

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]

EDIT = "echo two >> a.txt; echo all: > Makefile; printf x > $'odd\\e[31mname'"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/warmcell/changes"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "a.txt").write_text("one\n")
    return made


def run(directory: Path, *argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    given = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    return subprocess.run([*COMMAND, *argv], cwd=directory, capture_output=True, text=True, timeout=60, **given)


def test_changes_of_a_run_are_kept_and_continued(directory: Path, state: Path) -> None:
    done = run(directory, "run", "command", "-c", EDIT + "; exit 3", "--changes")
    assert done.returncode == 3
    assert "M a.txt" in done.stderr
    assert "A Makefile  ! " in done.stderr
    assert "\x1b" not in done.stderr
    assert os.listdir(directory) == ["a.txt"]
    assert (directory / "a.txt").read_text() == "one\n"
    done = run(directory, "shell", ".", "--commit", stdin="cat a.txt")
    assert done.stdout == "one\ntwo\n"
    assert done.returncode == 1  # the Makefile is flagged
    assert "hint: [p]ick it, at the end of 'warmcell shell DIR --changes'\n" in done.stderr
    assert (directory / "a.txt").read_text() == "one\ntwo\n"
    assert not (directory / "Makefile").exists()
    assert run(directory, "run", "command", "-c", "cat Makefile", "--discard").stdout == "all:\n"
    assert os.listdir(state) == []


def test_the_status_of_a_run_says_that_not_all_was_committed(directory: Path) -> None:
    """It was the program's, and 0: a script went on without the files that were flagged."""
    assert run(directory, "run", "command", "-c", EDIT, "--commit").returncode == 1
    assert (directory / "a.txt").read_text() == "one\ntwo\n" and not (directory / "Makefile").exists()
    assert run(directory, "run", "command", "-c", "true", "--discard").returncode == 0
    assert run(directory, "run", "command", "-c", "echo three >> a.txt", "--commit").returncode == 0


def test_json_lists_the_changes(directory: Path) -> None:
    done = run(directory, "run", "command", "-c", EDIT + "; exit 3", "--commit", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["exit_code"]) == (3, 3)
    changes = {change["path"]: change for change in found["changes"]}
    assert {path: change["kind"] for path, change in changes.items()} == {
        "Makefile": "added",
        "a.txt": "modified",
        "odd\x1b[31mname": "added",
    }
    assert changes["Makefile"]["is_flagged"] and changes["Makefile"]["flag_reason"]
    assert (directory / "a.txt").read_text() == "one\ntwo\n"
    assert json.loads(run(directory, "run", "command", "-c", "cat a.txt", "--discard", "--json").stdout)["stdout"]
    assert "changes" not in json.loads(run(directory, "run", "command", "-c", "true", "--json").stdout)


def test_a_patch_instead(directory: Path, state: Path) -> None:
    done = run(directory, "run", "python", "-c", "open('a.txt', 'a').write('two\\n')", "--patch", "../out.patch")
    assert done.returncode == 0, done.stderr
    assert (directory / "a.txt").read_text() == "one\n"
    subprocess.run(["git", "apply", "../out.patch"], cwd=directory, check=True)
    assert (directory / "a.txt").read_text() == "one\ntwo\n"
    assert os.listdir(state) == []


@pytest.mark.parametrize(
    "options",
    [["--commit", "--discard"], ["--changes", "--backend", "wasm"], ["--changes", "--enforcer", "none"]],
)
def test_what_cannot_be_combined(directory: Path, options: list[str]) -> None:
    done = run(directory, "run", "python", "-c", "1", *options)
    assert done.returncode == 2, done.stderr


def test_a_person_is_asked(directory: Path, state: Path) -> None:
    terminal = Terminal("shell", str(directory), "--changes", code=PATIENT)
    try:
        terminal.until("$ ")
        terminal.type(f"{EDIT}; pwd; exit\n")
        terminal.type(terminal.answers())
        shown = terminal.until("later? ")
        assert "3 changes" in shown
        assert "\x1b[33mM a.txt" in shown
        assert "odd\\033[31mname" in shown
        terminal.type("d\n")
        assert "\x1b[32m+two" in terminal.until("later? ")
        terminal.type("p\n")
        for answer in "yny":  # Makefile, a.txt, odd
            terminal.until("[y/n] ")
            terminal.type(answer + "\n")
        terminal.until("later? ")
        terminal.type("t\n")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()
    assert (directory / "a.txt").read_text() == "one\n"
    assert (directory / "Makefile").read_text() == "all:\n"
    assert os.listdir(state) == []


@pytest.mark.claim("WC-FS-8")
def test_no_program_changes_what_is_reviewed(directory: Path, state: Path) -> None:
    """A process that the shell left behind could exchange a file between the look at it and the answer."""
    terminal = Terminal("shell", str(directory), "--changes", code=PATIENT)
    seconds = f"{os.getpid()}.0{time.time_ns()}"  # names the process
    try:
        terminal.until("$ ")
        terminal.type(f"echo x > new; setsid sleep {seconds} & sleep 0\nexit\n")
        terminal.type(terminal.answers())
        terminal.until("later? ")
        assert not is_running(seconds)
        terminal.type("a\nt\n")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()
    assert (directory / "new").read_text() == "x\n"


def is_running(argument: str) -> bool:
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if process.read_bytes().split(b"\0")[1:2] == [argument.encode()]:
                return True
    return False


@pytest.mark.claim("WC-FS-8")
def test_the_diff_shows_every_line_as_it_is(directory: Path, state: Path) -> None:
    """Nothing in a file looks like the end of a line or the header of another file, and no line is cut."""
    hostile = "a\rb\x0bc\x85d\u2028diff --git forged\x1b[2K"
    (directory / "write.py").write_text(f"open('new', 'w').write({hostile!r} + 'z' * 3000 + 'end\\n')")
    terminal = Terminal("shell", str(directory), "--changes", code=PATIENT)
    try:
        terminal.until("$ ")
        terminal.type("python3 write.py; exit\n")
        terminal.type(terminal.answers())
        terminal.until("later? ")
        terminal.type("d\n")
        shown = terminal.until("later? ")
        terminal.type("t\n")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()
    assert "+a\\rb\\x0bc\\x85d\\u2028diff --git forged\\x1b[2Kzzz" in shown
    assert "zzzend\x1b[0m" in shown


def test_a_patch_keeps_bytes_that_are_not_utf_8(directory: Path, state: Path) -> None:
    (directory / "a.txt").write_bytes(b"one \xe9\n")
    edit = r"open('a.txt', 'ab').write(b'two \xe8\n')"
    done = run(directory, "run", "python", "-c", edit, "--patch", "../out.patch")
    assert done.returncode == 0, done.stderr
    subprocess.run(["git", "apply", "../out.patch"], cwd=directory, check=True)
    assert (directory / "a.txt").read_bytes() == b"one \xe9\ntwo \xe8\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_changes_of_a_shell_that_a_signal_ends_are_kept(directory: Path, state: Path, number: int) -> None:
    """A closed terminal is such a signal. Nobody was asked, so nothing is thrown away."""
    terminal = Terminal("shell", str(directory), "--changes")
    try:
        terminal.until("$ ")
        terminal.type("echo two >> a.txt; echo go''es; sleep 1000\n")
        terminal.until("goes")
        terminal.process.send_signal(number)
        assert terminal.wait() == 128 + number
    finally:
        terminal.close()
    assert run(directory, "shell", ".", "--discard", stdin="cat a.txt").stdout == "one\ntwo\n"
    assert os.listdir(state) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("more", "shown"), [("", "later? "), ("; echo goes; sleep 1000", "goes")])
def test_changes_of_a_run_that_a_signal_ends_are_kept(
    directory: Path, state: Path, monkeypatch: pytest.MonkeyPatch, number: int, more: str, shown: str
) -> None:
    """Before the answer, or before the question. The next start removed what nobody had reviewed."""
    monkeypatch.chdir(directory)
    terminal = Terminal("run", "command", "-c", f"echo two >> a.txt{more}", "--changes")
    try:
        terminal.until(shown)
        terminal.process.send_signal(number)
        assert terminal.process.wait(60) == -number
    finally:
        terminal.close()
    assert (directory / "a.txt").read_text() == "one\n"
    # The processes that hold the layer end a moment later.
    until(lambda: run(directory, "shell", ".", "--discard", stdin="cat a.txt").stdout == "one\ntwo\n")
    assert os.listdir(state) == []


def test_a_signal_leaves_nothing_of_a_shell_without_changes(directory: Path, state: Path) -> None:
    terminal = Terminal("shell", str(directory), "--changes")
    try:
        terminal.until("$ ")
        terminal.process.terminate()
        assert terminal.wait() == 128 + signal.SIGTERM
    finally:
        terminal.close()
    assert os.listdir(state) == []


def test_changes_of_a_script_that_a_limit_ends_are_kept(directory: Path, state: Path) -> None:
    script = "echo two >> a.txt; exec python3 -c 'x = [bytearray(1 << 20) for _ in range(400)]'"
    assert run(directory, "shell", ".", "--changes", "--memory", "64", stdin=script).returncode == 137
    assert run(directory, "shell", ".", "--discard", stdin="cat a.txt").stdout == "one\ntwo\n"
    assert os.listdir(state) == []


def test_changes_of_a_run_whose_output_nobody_reads_are_kept(directory: Path, state: Path) -> None:
    """The broken pipe of `| head` skipped the review, and the changes were removed."""
    code = "open('a.txt', 'a').write('two\\n'); print('x' * 1_000_000)"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, "run", "python", "-c", code, "--changes"],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.returncode, b"M a.txt" in done.stderr) == (141, True)
    assert run(directory, "shell", ".", "--discard", stdin="cat a.txt").stdout == "one\ntwo\n"
    assert os.listdir(state) == []


def test_changes_that_cannot_be_committed_are_kept(directory: Path, state: Path) -> None:
    layer = ChangeLayer(str(directory), str(directory), may_mount=False)
    merged = Root(layer.copy_path)
    (Path(layer.copy_path) / "a.txt").write_text("one\ntwo\n")
    try:
        with (
            mock.patch.object(layer, "commit", side_effect=ExecutionFailed("the disk is full")),
            pytest.raises(ExecutionFailed, match="full"),
        ):
            review(layer, merged, SimpleNamespace(commit=True, discard=False, patch=None))
    finally:
        merged.close()
        layer.close()
    assert run(directory, "shell", ".", "--discard", stdin="cat a.txt").stdout == "one\ntwo\n"
