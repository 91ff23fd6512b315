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


def rewritten(file: Path, **changes: Any) -> None:
    plain = json.loads(file.read_text())
    file.write_text(json.dumps(plain | changes) + "\n")


@pytest.mark.needs("user namespaces")
def test_a_file_does_not_open_the_host_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "record"
    (tmp_path / "secret").write_text("mine")
    warmcell("run", "python", "-c", f"print(open({str(tmp_path / 'secret')!r}).read())", "--record", str(file))
    policy = Builder().allow_read(tmp_path / "secret").build()
    for change in ({"enforcer": None}, {"enforcer": "auto", "policy": json.loads(policy.to_json())}):
        rewritten(file, **change)
        refused = warmcell("replay", str(file))
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "--trust" in refused.stderr
    assert "mine" in warmcell("replay", str(file), "--trust").stdout


def test_wrong_files_are_usage_errors(tmp_path: Path) -> None:
    assert warmcell("replay", str(tmp_path / "none")).returncode == 2
    (tmp_path / "junk").write_text("junk\n")
    said = warmcell("replay", str(tmp_path / "junk"))
    assert (said.returncode, "line 1" in said.stderr) == (2, True)
