"""What `--state` keeps when the disk is full, the server is killed, or a sandbox cannot be restored."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import PATIENCE, is_root, until_async

from warmcell.core.errors import BackendUnavailable, ExecutionFailed, InvalidRequest
from warmcell.interfaces.serve import saved_sandboxes, saved_state
from warmcell.interfaces.serve.app import restore_all
from warmcell.interfaces.serve.e2b.volumes import volumes_of
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.interfaces.serve.saved_sandboxes import (
    SavedSandbox,
    keep_new_sandbox,
    restore_sandboxes,
    save_all,
    save_now,
)
from warmcell.interfaces.serve.saved_state import SANDBOXES, VOLUMES, SavedState
from warmcell.interfaces.serve.server import hold_state
from warmcell.interfaces.serve.service import LOCAL_TENANT, Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.usage import directory_bytes
from warmcell.interfaces.serve.v1 import sandboxes
from warmcell.workspace.remove import remove_directory


def refuse(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/path/of/the/host")


def names(state: SavedState, kind: str) -> list[str]:
    return sorted(os.listdir(os.path.join(state.path, kind)))


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(Settings(state=str(tmp_path / "state")))
    yield made
    await made.aclose()


def saved(service: Service) -> SavedState:
    assert service.saved is not None
    return service.saved


def test_a_record_that_cannot_be_written_leaves_the_former_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SavedState(str(tmp_path), 0)
    state.put(SANDBOXES, "a", {"id": "a", "number": 1})
    monkeypatch.setattr(saved_state, "sync_file", refuse)
    with pytest.raises(ExecutionFailed, match="No space left") as failure:
        state.put(SANDBOXES, "a", {"id": "a", "number": 2}, is_durable=True)
    assert (failure.value.fault, failure.value.retryable) == ("host", True)
    assert "/a/path" not in str(failure.value)
    assert names(state, SANDBOXES) == ["a.json"]
    assert state.documents(SANDBOXES) == [{"id": "a", "number": 1}]


def test_of_two_records_at_once_the_later_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause syncs its record in a thread, while the event loop writes the next one."""
    state, is_syncing, may_go_on = SavedState(str(tmp_path), 0), threading.Event(), threading.Event()

    def wait() -> None:
        is_syncing.set()
        may_go_on.wait(PATIENCE)

    monkeypatch.setattr(state, "sync_files", wait)
    slow = threading.Thread(target=state.put, args=(SANDBOXES, "a", {"id": "a", "n": 1}), kwargs={"is_durable": True})
    slow.start()
    assert is_syncing.wait(PATIENCE)
    state.put(SANDBOXES, "a", {"id": "a", "n": 2})
    may_go_on.set()
    slow.join(PATIENCE)
    assert state.documents(SANDBOXES) == [{"id": "a", "n": 2}]
    assert names(state, SANDBOXES) == ["a.json"]


async def test_drafts_of_a_killed_server_are_removed(tmp_path: Path) -> None:
    """One in the directory of volumes kept every later server from starting."""
    SavedState(str(tmp_path / "state"), 0).close()
    for kind in (SANDBOXES, VOLUMES):
        (tmp_path / "state/worker-0" / kind / "vol-1.3.json.new").write_text('{"id": ')
    service = Service(Settings(state=str(tmp_path / "state")))
    try:
        volumes_of(service).load()
        assert names(saved(service), VOLUMES) == names(saved(service), SANDBOXES) == []
    finally:
        await service.aclose()


def test_nothing_is_removed_while_a_record_cannot_be_read(tmp_path: Path) -> None:
    state = SavedState(str(tmp_path), 0)
    home = state.make_home()
    (tmp_path / "worker-0/records/a.json").write_text("{")
    assert state.documents(SANDBOXES) == []
    state.remove_unused(set(), set(), set())
    assert os.path.isdir(home.path), "the record may name it"


async def test_a_sandbox_that_cannot_be_restored_now_keeps_its_files(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = saved(service)
    home, image = state.make_home(), Path(state.path, "sessions/image")
    image.touch()
    document = {"id": "a", "home": home.name, "tenant": LOCAL_TENANT.id, "created": time.time(), "metadata": {}}
    document |= {"expires": time.time() + 3600, "protocol": "v1", "own": {}, "sessions": [{"image": "image"}]}
    state.put(SANDBOXES, "a", document)

    async def fail(service: Service, tenant: Any, own: Any, home: Any) -> Any:
        home.close()  # as after any other failure to make a sandbox
        raise BackendUnavailable("the host's disk for temporary files is full")

    await restore_sandboxes(service, {"v1": fail})
    assert os.path.isdir(home.path) and image.exists()
    assert names(state, SANDBOXES) == ["a.json"]
    state.put(SANDBOXES, "a", document | {"expires": 1.0})
    await restore_sandboxes(service, {"v1": fail})
    assert os.path.isdir(home.path) and image.exists(), "the clock may be wrong"
    monkeypatch.setattr(saved_sandboxes, "GRACE_SECONDS", 0.0)
    await restore_sandboxes(service, {"v1": fail})
    await until_async(lambda: names(state, SANDBOXES) == names(state, "homes") == names(state, "sessions") == [])


async def test_a_stop_while_sandboxes_are_restored_removes_none(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that starts for longer than it may drain removed those that it had restored, with their files."""
    state, is_waiting = saved(service), asyncio.Event()
    for number, identity in enumerate("ab"):
        document = {"id": identity, "home": state.make_home().name, "tenant": LOCAL_TENANT.id, "metadata": {}}
        document |= {"created": time.time() + number, "expires": time.time() + 3600, "protocol": "v1"}
        state.put(SANDBOXES, identity, document | {"own": {"asked": {}}})
    restore_one = sandboxes.restore_sandbox

    async def restore(*asked: Any) -> Any:
        if service.sandboxes.all():
            is_waiting.set()
            await asyncio.Event().wait()
        return await restore_one(*asked)

    monkeypatch.setattr(sandboxes, "restore_sandbox", restore)
    restoring = asyncio.ensure_future(restore_all(service))
    await is_waiting.wait()
    await service.aclose()
    restoring.cancel()
    await asyncio.wait([restoring])
    assert names(state, SANDBOXES) == ["a.json", "b.json"] and len(names(state, "homes")) == 2


async def test_a_sandbox_whose_record_cannot_be_written_is_not_made(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = saved(service)
    home = state.make_home()
    entry = service.sandboxes.add(
        lambda: service.make_sandbox(LOCAL_TENANT, work_dir=home.path), LOCAL_TENANT, 60.0, {}
    )
    monkeypatch.setattr(saved_state, "grant_owner", refuse)
    with pytest.raises(ExecutionFailed, match="No space left"):
        await keep_new_sandbox(service, entry, SavedSandbox("v1", home, dict))
    assert service.sandboxes.all() == []
    assert names(state, "homes") == names(state, SANDBOXES) == []


@pytest.mark.parametrize("failing", ["saved_state.grant_owner", "saved_sandboxes.write_all"])
async def test_a_stop_that_cannot_save_removes_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """After an error that is not of the disk every sandbox was removed, with its files and its record."""

    def fail(*_: object) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    state = saved(service)
    home = state.make_home()
    entry = service.sandboxes.add(
        lambda: service.make_sandbox(LOCAL_TENANT, work_dir=home.path), LOCAL_TENANT, 60.0, {}
    )
    await keep_new_sandbox(service, entry, SavedSandbox("v1", home, dict))
    monkeypatch.setattr(f"warmcell.interfaces.serve.{failing}", fail)
    service.on_stop.append(lambda: save_all(service))
    await service.aclose()
    assert os.path.isdir(home.path) and names(state, SANDBOXES) == [f"{entry.id}.json"]


async def test_a_lifetime_that_cannot_be_saved_stays_as_it_was(service: Service) -> None:
    entry: SandboxEntry = service.sandboxes.add(lambda: service.make_sandbox(LOCAL_TENANT), LOCAL_TENANT, 60.0, {})
    before, entry.on_change = entry.deadline, refuse
    with pytest.raises(OSError, match="No space left"):
        service.sandboxes.prolong(entry, 30.0, LOCAL_TENANT)
    assert entry.deadline == before


async def test_an_expired_sandbox_is_not_removed_because_the_disk_is_full(service: Service) -> None:
    entry = service.sandboxes.add(lambda: service.make_sandbox(LOCAL_TENANT), LOCAL_TENANT, 60.0, {})

    async def pause() -> None:
        pass

    def fail() -> None:
        raise ExecutionFailed("no space left")

    entry.on_expiry, entry.on_change = pause, fail
    await service.sandboxes._expire(entry)
    assert service.sandboxes.all() == [entry]
    assert entry.has_left(61.0), "it is paused until its longest lifetime ends"


def test_packages_that_do_not_fit_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SavedState(str(tmp_path), 0)
    monkeypatch.setattr(saved_state, "copy_packages", refuse)
    with pytest.raises(ExecutionFailed, match="save the packages: No space left"):
        state.keep_packages(str(tmp_path))
    assert names(state, "packages") == []


def test_deep_directories_are_measured(tmp_path: Path) -> None:
    """More levels than Python's stack and the descriptors of a process allow."""
    place, here = tmp_path / "deep", os.open(tmp_path, os.O_RDONLY)
    for name in ("deep", *["d"] * 1500):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    with open(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here), "wb") as file:
        file.write(os.urandom(1 << 20))
    os.close(here)
    try:
        assert directory_bytes(str(place)) >= 1 << 20
        assert directory_bytes(str(tmp_path / "absent")) == 0
    finally:
        remove_directory(str(place))  # pytest's own removal is recursive


@pytest.mark.skipif(is_root(), reason="root may read and write everything")
@pytest.mark.parametrize("mode", [0, 0o500])
def test_a_directory_that_may_not_be_written_is_not_reported_as_in_use(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    try:
        with pytest.raises(InvalidRequest, match="permission denied") as refused:
            hold_state(str(tmp_path), 1)
    finally:
        tmp_path.chmod(0o700)
    assert "owner" in str(refused.value.hint)


async def test_a_volume_whose_client_has_gone_is_not_kept(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record would bring it back after a restart, beyond the quota."""
    state, started, may_end = service.saved, threading.Event(), threading.Event()
    assert state is not None
    put = state.put

    def slow(*words: Any, **more: Any) -> Any:
        started.set()
        may_end.wait(PATIENCE)
        return put(*words, **more)

    monkeypatch.setattr(state, "put", slow)
    making = asyncio.ensure_future(volumes_of(service).create(LOCAL_TENANT, "v"))
    await asyncio.to_thread(started.wait, PATIENCE)
    making.cancel()
    may_end.set()
    await asyncio.wait({making})
    assert making.cancelled() and names(state, VOLUMES) == [] and volumes_of(service).of(LOCAL_TENANT) == []


async def test_a_volume_that_is_removed_while_it_is_made_does_not_return(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, volumes = saved(service), volumes_of(service)
    started, may_end, put = threading.Event(), threading.Event(), state.put

    def slow(*words: Any, **more: Any) -> Any:
        started.set()
        may_end.wait(PATIENCE)
        return put(*words, **more)

    monkeypatch.setattr(state, "put", slow)
    making = asyncio.ensure_future(volumes.create(LOCAL_TENANT, "v"))
    await asyncio.to_thread(started.wait, PATIENCE)
    await volumes.remove(volumes.of(LOCAL_TENANT)[0])
    may_end.set()
    with pytest.raises(HttpError, match="removed while it was made"):
        await making
    assert names(state, VOLUMES) == []


async def test_a_sandbox_that_is_removed_while_it_is_saved_leaves_no_record(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record, with its secrets, stayed until the next start of the server."""
    state, is_syncing, may_go_on = saved(service), threading.Event(), threading.Event()
    home = state.make_home()
    entry = service.sandboxes.add(
        lambda: service.make_sandbox(LOCAL_TENANT, work_dir=home.path), LOCAL_TENANT, 60.0, {}
    )
    await keep_new_sandbox(service, entry, SavedSandbox("v1", home, dict))

    def wait() -> None:
        is_syncing.set()
        may_go_on.wait(PATIENCE)

    monkeypatch.setattr(state, "sync_files", wait)
    saving = asyncio.ensure_future(save_now(service, entry))
    await asyncio.to_thread(is_syncing.wait, PATIENCE)
    await service.sandboxes.remove(entry)
    may_go_on.set()
    await saving
    entry.on_change()
    assert names(state, SANDBOXES) == names(state, "homes") == []
