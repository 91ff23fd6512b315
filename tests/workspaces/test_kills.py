"""Programs that are killed while they write to a store: what was committed stays, nothing is there by half."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.helpers import fork_child
from tests.workspaces.trees import directory_of, list_objects, look

from warmcell.workspaces import Manifest, WorkspaceStore

KILLS = 200


def _digest(directory: Path) -> str:
    return hashlib.sha256(repr(sorted(look(directory).items())).encode()).hexdigest()


def _work(path: str, log: int, round_number: int) -> None:
    """Change files, take a snapshot, remove old ones, compact, resume; each is logged once it is done."""

    def say(**event: str) -> None:
        os.write(log, json.dumps(event).encode() + b"\n")

    store = WorkspaceStore(path)
    made = store.get("w")
    place = directory_of(store, made)
    (place / f"f{round_number % 7}").write_bytes(b"%d " % round_number * 2000)
    digest = _digest_unseen(place)
    taken = store.snapshot(made)
    say(committed=taken, digest=digest)
    for old in store.snapshots()[:-2]:
        say(removing=old.id)
        store.remove(old.id)
    store.compact()
    back = store.resume(taken)
    say(resumed=back.id, digest=digest)
    say(removing_workspace=back.id)
    store.remove(back)


def _digest_unseen(directory: Path) -> str:
    """Without kill points."""
    profile = sys.getprofile()
    sys.setprofile(None)
    try:
        return _digest(directory)
    finally:
        sys.setprofile(profile)


def _count_steps(path: str, log: Path) -> int:
    steps = [0]

    def count(frame: object, event: str, argument: object) -> None:
        steps[0] += 1

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        sys.setprofile(count)
        _work(path, descriptor, 0)
    finally:
        sys.setprofile(None)
        os.close(descriptor)
    return steps[0]


def _kill_after(events: int) -> Callable[..., None]:
    """A profile function that kills this process, as `kill -9` would, after so many calls of functions."""
    left = [events]

    def count(frame: object, event: str, argument: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


def _run_killed(path: str, log: Path, number: int, point: int) -> bool:
    """Whether the program was killed, and did not finish first."""

    def program() -> None:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sys.setprofile(_kill_after(point))
        _work(path, descriptor, number)
        sys.setprofile(None)

    _, status = os.waitpid(fork_child(program), 0)
    assert status == 0 or os.WIFSIGNALED(status), f"the program failed before point {point}"
    return status != 0


def _check(path: str, log: Path, *, is_thorough: bool) -> None:
    events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    committed = {event["committed"]: event["digest"] for event in events if "committed" in event}
    removed = {event.get("removing") or event.get("removing_workspace") for event in events}
    resumed = {event["resumed"]: event["digest"] for event in events if "resumed" in event}
    store = WorkspaceStore(path)
    listed = {info.id for info in store.snapshots()}
    assert set(committed) - removed <= listed, "a committed snapshot is lost"
    for workspace in store.list():
        if workspace.id in resumed and workspace.id not in removed:
            assert _digest(directory_of(store, workspace)) == resumed[workspace.id]
    for identity in sorted(listed) if is_thorough else sorted(listed)[-1:]:
        back = store.resume(identity)  # whole, whether or not it was reported before the kill
        assert _digest(directory_of(store, back)) == committed.get(identity, _digest(directory_of(store, back)))
        store.remove(back)


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is room: a killed process loses nothing that it wrote, so syncing adds nothing but time."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(prefix="warmcell-kills-", dir=where) as made:
        yield Path(made)


@pytest.mark.timeout(300)
def test_two_hundred_kills(quick_path: Path) -> None:
    """From a process without threads: a fork beside one that uses SQLite may inherit its locks."""
    assert os.waitpid(fork_child(lambda: _kill_two_hundred_times(quick_path)), 0)[1] == 0


def _kill_two_hundred_times(quick_path: Path) -> None:
    path, log = str(quick_path / "store"), quick_path / "log"
    store = WorkspaceStore(path)
    made = store.provision(Manifest(files={f"f{number}": "x" * 50 for number in range(7)}), name="w")
    for _ in range(3):  # until there is something to remove
        steps = _count_steps(path, log)
    killed = 0
    for number in range(KILLS):
        killed += _run_killed(path, log, number, number * steps // KILLS)
        _check(path, log, is_thorough=number % 10 == 0)
    assert killed > KILLS * 0.8
    _check(path, log, is_thorough=True)
    for workspace in store.list():
        if workspace.id != made.id:
            store.remove(workspace)
    store.compact()
    assert [file.name for file in list_objects(store, "work")] == [made.id]
    assert list_objects(store, "staging") == []


def test_the_order_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack is on disk before its record, and each file before its name: a kill of the machine is covered too."""
    store = WorkspaceStore(tmp_path / "store")
    made = store.provision(Manifest(files={"a": "b"}))
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def on_fsync(descriptor: int) -> None:
        name = os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), store.path).split("/")
        steps.append(f"sync {name[0]}{' file' if len(name) > 1 else ''}")
        fsync(descriptor)

    def on_rename(old: str, new: str, **rest: int) -> None:
        steps.append(f"name {os.path.relpath(new, store.path).split('/')[0]}")
        rename(old, new, **rest)

    monkeypatch.setattr(os, "fsync", on_fsync)
    monkeypatch.setattr(os, "rename", on_rename)
    store.snapshot(made)
    halves = [[f"sync {'staging'} file", f"name {kind}", f"sync {kind}"] for kind in ("packs", "snapshots")]
    assert steps == halves[0] + halves[1]
