"""What was recorded is run again, and what differs is said."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warmcell import ExecRequest, ExecResult, ExecutionTimeout, FakeBackend, InvalidRequest, Limits, Recorder
from warmcell import SandboxPolicyBuilder as Builder
from warmcell.backends.fake import FakeTimeout
from warmcell.interfaces.cli.replay import _describe
from warmcell.interfaces.recording import Recording, read, write

REQUEST = ExecRequest(
    "python",
    "print(1)",
    5,
    stdin=b"\xff",
    memory_limit_mb=64,
    env={"A": "b"},
    limits=Limits(processes=3),
    args=("x",),
    files={"a/b": b"\0"},
    fetch_files=("c",),
)


def warmcell(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "warmcell", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)


def test_a_recording_comes_back_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "record")
    policy = Builder().allow_domain("a.example", (443,)).build()
    recording = Recording(REQUEST, {"status": "success"}, "process", None, policy, {"warmcell": "1"})
    write(path, recording)
    write(path, recording)
    assert list(read(path)) == [recording, recording]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


async def test_the_recorder_writes_results_and_errors(tmp_path: Path) -> None:
    path = tmp_path / "record"
    recorder = Recorder(FakeBackend([ExecResult(stdout="1\n"), FakeTimeout()]), path)
    assert (await recorder.execute(REQUEST)).stdout == "1\n"
    with pytest.raises(ExecutionTimeout):
        await recorder.execute(REQUEST)
    first, second = read(str(path))
    assert (first.outcome["status"], first.outcome["stdout"]) == ("success", "1\n")
    assert second.outcome["error"]["code"] == "sandbox.timeout"
    assert first.request == REQUEST


@pytest.mark.parametrize(
    "line", ["", "x", "[]", "{}", '{"format": 9}', "[" * 100_000, '{"format": 1, "policy": null, "request": {}}']
)
def test_what_is_no_recording_is_refused_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "record"
    path.write_text(line + "\n")
    with pytest.raises(InvalidRequest, match="line 1"):
        list(read(str(path)))


@pytest.mark.needs("user namespaces")
def test_the_command_records_and_replays(tmp_path: Path) -> None:
    file = str(tmp_path / "record")
    code = "import sys; print(sys.stdin.read(), sys.argv[1]); sys.exit(3)"
    ran = warmcell("run", "python", "-c", code, "--record", file, "--", "word", stdin="given")
    assert (ran.returncode, ran.stdout) == (3, "given word\n"), ran.stderr
    warmcell("run", "python", "-c", "import time; print(time.time_ns())", "--record", file)
    replayed = warmcell("replay", file)
    assert replayed.returncode == 1, replayed.stderr
    assert "run 1 (python): same" in replayed.stdout
    assert "run 2 (python): differs" in replayed.stdout
    assert "outcome stdout" in replayed.stdout
    first, second = (json.loads(line) for line in warmcell("replay", file, "--json").stdout.splitlines())
    assert (first["same"], second["same"]) == (True, False)
    assert list(second["differences"]["outcome"]) == ["stdout"]


def change_recording(file: Path, **changes: Any) -> None:
    plain = json.loads(file.read_text())
    file.write_text(json.dumps(plain | changes) + "\n")


@pytest.mark.needs("user namespaces")
def test_a_file_does_not_open_the_host_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "record"
    (tmp_path / "secret").write_text("mine")
    warmcell("run", "python", "-c", f"print(open({str(tmp_path / 'secret')!r}).read())", "--record", str(file))
    policy = Builder().allow_read(tmp_path / "secret").build()
    for change in ({"enforcer": None}, {"enforcer": "auto", "policy": json.loads(policy.to_json())}):
        change_recording(file, **change)
        refused = warmcell("replay", str(file))
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "--trust" in refused.stderr
    assert "mine" in warmcell("replay", str(file), "--trust").stdout


@pytest.mark.attack("S3-08")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"enforcer": "landlock"}, "enforcer"),
        ({"enforcer": "bubblewrap"}, "enforcer"),
        ({"enforcer": "no such"}, "enforcer"),
        ({"backend": "fake"}, "backend"),
        ({"policy": json.loads(Builder().limits(Limits(processes=60_000)).build().to_json())}, "limits"),
        ({"policy": json.loads(Builder().limits(Limits(disk_mb=1 << 20)).build().to_json())}, "limits"),
    ],
)
def test_a_file_does_not_lower_the_isolation(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    file = tmp_path / "record"
    write(str(file), Recording(ExecRequest("python", "print(1)", 5), {"status": "success"}))
    change_recording(file, **changes)
    refused = warmcell("replay", str(file))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert reason in refused.stderr and "--trust" in refused.stderr


@pytest.mark.attack("S3-08")
def test_a_request_does_not_raise_the_limits_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "record"
    write(str(file), Recording(ExecRequest("python", "print(1)", 5, memory_limit_mb=4096), {"status": "success"}))
    refused = warmcell("replay", str(file))
    assert (refused.returncode, "limits" in refused.stderr) == (2, True)


@pytest.mark.attack("S3-12")
@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "device"])
def test_only_regular_files_are_recordings(tmp_path: Path, kind: str) -> None:
    path, real = tmp_path / "record", tmp_path / "real"
    write(str(real), Recording(REQUEST, {"status": "success"}))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(real)
    elif kind == "directory":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    with pytest.raises(InvalidRequest, match="not a regular file"):
        list(read(str(path)))
    with pytest.raises(InvalidRequest, match="not a regular file"):
        write(str(path), Recording(REQUEST, {"status": "success"}))


@pytest.mark.attack("S3-12")
@pytest.mark.parametrize("depth", [100, 900, 5_000, 1_000_000])
def test_deep_json_is_a_typed_error(tmp_path: Path, depth: int) -> None:
    file = tmp_path / "record"
    write(str(file), Recording(REQUEST, {"status": "success"}))
    deep = "[" * depth + "]" * depth
    file.write_text(file.read_text().replace('"status": "success"', f'"status": {deep}'))
    with pytest.raises(InvalidRequest, match="line 1"):
        list(read(str(file)))


@pytest.mark.parametrize("outcome", [{"error": "x"}, {"enforced": [1]}, {"enforced": "abc"}])
def test_an_outcome_of_other_types_is_refused_by_its_line(tmp_path: Path, outcome: dict[str, Any]) -> None:
    file = tmp_path / "record"
    write(str(file), Recording(REQUEST, outcome))
    with pytest.raises(InvalidRequest, match="line 1"):
        list(read(str(file)))


def test_names_in_a_recording_cannot_move_the_cursor() -> None:
    (line,) = _describe("versions \x1b[2J\ud800", "1", "2")
    assert line.isprintable()
    assert "\\x1b" in line


def test_wrong_files_are_usage_errors(tmp_path: Path) -> None:
    assert warmcell("replay", str(tmp_path / "none")).returncode == 2
    (tmp_path / "junk").write_text("junk\n")
    said = warmcell("replay", str(tmp_path / "junk"))
    assert (said.returncode, "line 1" in said.stderr) == (2, True)
