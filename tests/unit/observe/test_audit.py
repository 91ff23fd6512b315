"""The audit: whole lines, for their owner alone, bounded; and read back in words that no guest can shape."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import until

from warmcell import ExecRequest, ExecResult, FakeBackend
from warmcell.core import events
from warmcell.core.errors import InvalidRequest
from warmcell.net.connect import connection_log
from warmcell.net.connect.admission import Gate
from warmcell.net.rules.hosts import Host
from warmcell.net.rules.rule_book import Decision, EgressRequest, RuleBook
from warmcell.observe.audit import AuditLog, in_words, read_audit

REQUEST = ExecRequest("python", "print(1)", 5)
DENIED = Decision(False, "default", "not allowed")


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_for_each_event_that_matters(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    backend = FakeBackend([ExecResult(duration=0.1), ExecResult(exit_code=2)])
    with AuditLog(path):
        backend.execute_blocking(REQUEST)
        backend.execute_blocking(REQUEST)
    backend.reply(ExecResult()).execute_blocking(REQUEST)
    found = lines(path)
    assert [(line["event"], line["outcome"]) for line in found] == [("run.ended", "ok"), ("run.ended", "failed")]
    assert all(line["policy"] and line["subject"] for line in found)
    assert path.stat().st_mode & 0o777 == 0o600 and not events.listeners


def test_it_is_rotated_and_no_line_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path, max_bytes=2000, keep=50):
        writers = [threading.Thread(target=write_some, args=(name,)) for name in "abcd"]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    files = [path, *tmp_path.glob("audit.jsonl.*")]
    found = [line for file in files for line in lines(file)]
    assert sorted(str(line["path"]) for line in found) == sorted(f"{name}{n}" for name in "abcd" for n in range(40))
    assert len(files) > 5 and all(file.stat().st_size <= 2000 for file in files)


def test_long_texts_of_guests_hide_no_event(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path):
        events.emit("network", "h" * 100_000, {"decision": "deny", "path": "\xff\n" * 50_000})
        events.emit("network", "host", {name: "\xff" * 5000 for name in "abcdef"})
    with open(path, "rb") as file:
        first, second = read_audit(file)
    assert (first["event"], first["decision"]) == ("network", "deny")
    assert str(first["path"]).endswith("(95904 more characters)") and len(str(first["subject"])) < 5000
    assert second["left_out"] == list("abcdef")


def test_a_rotation_that_cannot_open_a_file_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It kept the number of a closed descriptor: the next lines went into whatever file of the program got it."""

    def fail() -> int:
        raise InvalidRequest("too many open files", field="audit")

    path, other = tmp_path / "audit.jsonl", tmp_path / "other"
    log = AuditLog(path, max_bytes=200)
    events.emit("file", "s", {"path": "x" * 200})
    with monkeypatch.context() as without_descriptors:
        without_descriptors.setattr(log, "_open", fail)
        events.emit("file", "s", {"path": "first"})
        descriptor = os.open(other, os.O_WRONLY | os.O_CREAT)
        events.emit("file", "s", {"path": "second"})
    events.emit("file", "s", {"path": "third"})
    log.close()
    os.close(descriptor)  # fails if the log has closed it
    found = [line["path"] for file in (Path(f"{path}.1"), path) for line in lines(file)]
    assert found == ["x" * 200, "first", "second", "third"] and other.read_bytes() == b""


def test_programs_that_rotate_at_once_lose_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one replaced what the first had just rotated by an almost empty file."""
    path, replace = tmp_path / "audit.jsonl", os.replace
    first, second = AuditLog(path, max_bytes=200), AuditLog(path, max_bytes=200)

    def note(log: AuditLog, name: str) -> None:
        log._on_event(events.Event("file", "s", 0.0, {"path": name}))

    def replace_after_the_other(source: str, target: str) -> None:
        monkeypatch.setattr(os, "replace", replace)
        note(second, "second")
        replace(source, target)

    note(first, "x" * 200)
    monkeypatch.setattr(os, "replace", replace_after_the_other)
    note(first, "first")
    for log in (first, second):
        log.close()
    found = [str(line["path"]) for file in tmp_path.iterdir() for line in lines(file)]
    assert sorted(found) == sorted(["x" * 200, "first", "second"])


def test_a_forked_child_does_not_keep_a_rotation_locked(tmp_path: Path) -> None:
    """It has the rotated file open as long as it lives. Other programs wrote there, and never to the new file."""
    path = tmp_path / "audit.jsonl"
    first, second = AuditLog(path, max_bytes=200), AuditLog(path, max_bytes=200)
    of_child = os.dup(first._file)  # the same open file, as after a fork
    for log, name in ((first, "x" * 200), (first, "first"), (second, "second")):
        log._on_event(events.Event("file", "s", 0.0, {"path": name}))
    for log in (first, second):
        log.close()
    os.close(of_child)
    assert [line["path"] for line in lines(path)] == ["first", "second"]


def write_some(name: str) -> None:
    for number in range(40):
        events.emit("file", "s", {"operation": "write_file", "path": f"{name}{number}"})


def test_only_so_many_old_files_are_kept(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "a", max_bytes=200, keep=2):
        write_some("x")
    assert sorted(os.listdir(tmp_path)) == ["a", "a.1", "a.2"]


@pytest.mark.parametrize(("name", "value"), [("max_bytes", 0), ("keep", -1)])
def test_a_wrong_limit_is_named(tmp_path: Path, name: str, value: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        AuditLog(tmp_path / "a", **{name: value})
    assert refused.value.field == name and not (tmp_path / "a").exists()


def test_what_a_killed_program_wrote_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    code = (
        "import sys, time\nfrom warmcell.core import events\nfrom warmcell.observe.audit import AuditLog\n"
        "log = AuditLog(sys.argv[1])\n"
        "for _ in range(10_000): events.emit('file', 's', {'path': 'x' * 3000})\n"  # fewer than one file has room for
        "time.sleep(600)\n"
    )
    program = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        until(lambda: path.exists() and path.stat().st_size > 100_000)
    finally:
        program.kill()
        program.wait()
    with AuditLog(path):
        events.emit("file", "s", {"path": "next"})
    with path.open("rb") as file:
        found = [record.get("path", record["event"]) for record in read_audit(file)]
    assert len(found) > 30 and set(found[:-2]) == {"x" * 3000}
    assert found[-2] in ("x" * 3000, "unreadable") and found[-1] == "next"


def test_a_link_is_not_followed_and_the_error_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(InvalidRequest, match="link"):
        AuditLog(tmp_path / "link")
    assert not (tmp_path / "target").exists() and not events.listeners


def command(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "warmcell", *words]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def test_the_command_writes_and_reads_it(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.jsonl")
    assert command("run", "python", "-c", "raise SystemExit(3)", "--audit", path).returncode == 3
    said = command("audit", path).stdout
    assert "python on process failed exit 3 in" in said and said.count("\n") == 1
    assert json.loads(command("audit", path, "--json").stdout)["event"] == "run.ended"


def test_a_file_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    ended = command("run", "python", "-c", "print(1)", "--audit", str(tmp_path))
    assert (ended.returncode, ended.stdout) == (2, "") and "--audit" in ended.stderr


def test_guests_move_no_cursor() -> None:
    hostile = {"event": "denial", "time": 1, "subject": "\x1b[2J", "kind": "f", "what": "\x1b]0;x\x07\n", "rule": "r"}
    assert in_words(hostile).isprintable()


@given(st.binary(max_size=2000))
def test_any_file_can_be_read(data: bytes) -> None:
    for record in read_audit(io.BytesIO(data)):
        assert in_words(record).isprintable()


@given(
    st.dictionaries(
        st.sampled_from(["event", "time", "kind", "duration", "port", "path"]),
        st.recursive(
            st.none() | st.floats() | st.text() | st.integers(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
        ),
    )
)
def test_any_record_can_be_said(record: dict[str, object]) -> None:
    for found in read_audit(io.BytesIO(json.dumps(record).encode() + b"\n")):
        assert in_words(found).isprintable()


@pytest.mark.attack("S3-10")
def test_a_guest_cannot_rotate_the_audit_away_by_connecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond its share is counted; other sandboxes and other lines are not affected; listeners get all."""
    monkeypatch.setattr(connection_log, "AUDIT_SECONDS", 1e9)
    path, heard = tmp_path / "audit.jsonl", list[events.Event]()
    flooding, other = Gate(RuleBook()), Gate(RuleBook())
    stop = events.listen(heard.append)
    with AuditLog(path, max_bytes=1 << 20, keep=1):
        FakeBackend([ExecResult()]).execute_blocking(REQUEST)
        for number in range(3000):
            flooding.refuse(EgressRequest(Host(f"h{number}"), 80, "GET", "/" + "a" * 8000), DENIED, "http")
        other.refuse(EgressRequest(Host("other"), 80), DENIED, "http")
        later = SimpleNamespace(monotonic=lambda: 1e15, time=time.time)
        monkeypatch.setattr(connection_log, "time", later)  # there alone: other threads have deadlines
        flooding.refuse(EgressRequest(Host("late"), 80), DENIED, "http")
    stop()
    found = lines(path)
    assert found[0]["event"] == "run.ended" and not (tmp_path / "audit.jsonl.1").exists()
    assert [line["host"] for line in found[1:]] == [*(f"h{number}" for number in range(500)), "other", "late"]
    assert "is_last_listed" in found[500] and "is_last_listed" not in found[499]
    assert found[-1]["left_out"] == 2500 and in_words(found[-1]).endswith(", after 2500 more that are not listed")
    assert sum(event.name == "network" for event in heard) == 3002
