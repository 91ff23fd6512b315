"""A sandbox from its making to its end: PT-13, settings, results, differences, snapshots, forks."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import threading
import time
from pathlib import Path

import pytest
from tests.helpers import PATIENCE, until, until_async
from tests.sandbox.fakes import Factory

from warmcell.core.errors import (
    CommandNotFound,
    ExecutionFailed,
    InvalidRequest,
    NetworkingDisabled,
    PathTraversal,
    SandboxDestroyed,
    SnapshotNotFound,
)
from warmcell.sandbox.blocking import AsyncSandbox, FsChange, MountPoint, Sandbox
from warmcell.workspace.errors import LimitExceeded


def test_a_private_work_directory_comes_and_goes(factory: Factory) -> None:
    with Sandbox(guest_factory=factory) as sandbox:
        assert os.stat(sandbox.work_dir).st_mode & 0o777 == 0o700
        sandbox.write_file("a/b", "x")
    assert not os.path.exists(sandbox.work_dir)
    assert factory.guest.closed == 1


def test_a_work_directory_of_the_caller_stays(tmp_path: Path, factory: Factory) -> None:
    with Sandbox(tmp_path, guest_factory=factory) as sandbox:
        sandbox.write_file("a", "x")
        assert sandbox.work_dir == os.path.realpath(tmp_path)
    assert (tmp_path / "a").read_text() == "x"


def test_a_forgotten_sandbox_removes_its_directory(factory: Factory) -> None:
    sandbox = Sandbox(guest_factory=factory)
    where = sandbox.work_dir
    del sandbox
    until(lambda: gc.collect() >= 0 and not os.path.exists(where))


def test_ids_cannot_be_guessed(factory: Factory) -> None:
    ids = {Sandbox(guest_factory=factory).id for _ in range(5)}
    assert len(ids) == 5
    assert all(len(bytes.fromhex(made)) * 8 >= 128 for made in ids)


def test_the_configuration_of_the_guest(factory: Factory, tmp_path: Path) -> None:
    mounts = [MountPoint(tmp_path, "/data")]
    with Sandbox(env={"A": "1"}, mounts=mounts, timeout=7, memory_limit_mb=64, guest_factory=factory) as sandbox:
        sandbox.mkdir("sub")
        assert sandbox.exec("ls", ["-l"], cwd="sub", stdin="in", timeout=3).stdout == "command ['ls', '-l']"
        sandbox.sh("echo hi")
        sandbox.exec_python("print(1)")
        sandbox.exec_js("1")
        sandbox.run("x", "rust")
        seen = [(kind, what, job.cwd, job.stdin, job.timeout) for kind, what, job in factory.guest.calls]
        config = factory.guest.config
    assert seen == [
        ("command", ["ls", "-l"], "/work/sub", "in", 3.0),
        ("script", "echo hi", "/work", None, 7.0),
        ("code:python", "print(1)", "/work", None, 7.0),
        ("code:javascript", "1", "/work", None, 7.0),
        ("code:rust", "x", "/work", None, 7.0),
    ]
    assert (config.work_dir, dict(config.env), config.memory_limit_mb) == (sandbox.work_dir, {"A": "1"}, 64)
    assert config.fetch is None


def test_a_missing_command_is_typed(sandbox: Sandbox) -> None:
    with pytest.raises(CommandNotFound, match="no-such-command"):
        sandbox.exec("no-such-command")


@pytest.mark.parametrize(
    "call",
    [
        lambda sandbox: sandbox.exec(""),
        lambda sandbox: sandbox.exec("ls", "-l"),
        lambda sandbox: sandbox.exec("ls", [3]),
        lambda sandbox: sandbox.exec("l\0s"),
        lambda sandbox: sandbox.exec("ls", timeout=0),
        lambda sandbox: sandbox.exec("ls", timeout=float("nan")),
        lambda sandbox: sandbox.exec("ls", stdin=3),
        lambda sandbox: sandbox.sh(""),
        lambda sandbox: sandbox.sh(None),
        lambda sandbox: sandbox.run("1", "cobol"),
        lambda sandbox: sandbox.run("1", None),
        lambda sandbox: sandbox.write_file("a", 3),
        lambda sandbox: sandbox.write_file("a", "\ud800"),
        lambda sandbox: sandbox.read_file("a", max_bytes=-1),
        lambda sandbox: sandbox.list_dir(max_entries=True),
        lambda sandbox: sandbox.upload(b"x"),
        lambda sandbox: sandbox.upload("/no/such/file/of/the/host"),
        lambda sandbox: sandbox.apply_patch(3),
    ],
)
def test_invalid_arguments_are_refused_before_anything_runs(sandbox: Sandbox, factory: Factory, call: object) -> None:
    with pytest.raises(InvalidRequest):
        call(sandbox)  # type: ignore[operator]
    assert factory.guest.calls == []
    assert os.listdir(sandbox.work_dir) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": 0},
        {"memory_limit_mb": 0},
        {"env": {"A=B": ""}},
        {"mounts": ["/x"]},
        {"work_dir": "/no/such/directory"},
    ],
)
def test_bad_settings_are_refused(factory: Factory, settings: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        Sandbox(**settings, guest_factory=factory)  # type: ignore[arg-type]


def test_an_unknown_backend_and_unenforceable_fuel_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="backend"):
        Sandbox(backend="docker")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="fuel"):
        Sandbox(backend="process", fuel=1000)


def test_a_file_mounted_in_place_of_the_work_directory(tmp_path: Path, factory: Factory) -> None:
    (tmp_path / "a").write_text("x")
    with Sandbox(mounts=[MountPoint(tmp_path, "/work")], guest_factory=factory) as sandbox:
        assert sandbox.read_text("a") == "x"
        assert not factory.guest.config.is_work_writable
        assert sandbox.diff() == []
        with pytest.raises(Exception, match="read-only"):
            sandbox.write_file("b", "")
    with pytest.raises(InvalidRequest):
        Sandbox(tmp_path, mounts=[MountPoint(tmp_path, "/work")], guest_factory=factory)


def test_without_a_fetch_policy_there_is_no_network(sandbox: Sandbox) -> None:
    with pytest.raises(NetworkingDisabled, match="fetch_policy"):
        sandbox.fetch("http://127.0.0.1/")


def test_the_difference_since_creation(tmp_path: Path, factory: Factory) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "gone").write_text("gone")
    with Sandbox(tmp_path, guest_factory=factory) as sandbox:

        def act(what: str) -> None:
            (tmp_path / "old").write_text("new")
            (tmp_path / "gone").unlink()
            (tmp_path / "made").write_text("made")

        factory.guest.on_run = act
        assert sandbox.diff() == []
        sandbox.sh("change things")
        assert sandbox.diff() == [
            FsChange("gone", "deleted", 4),
            FsChange("made", "created", 4),
            FsChange("old", "modified", 3),
        ]
        assert (sandbox.read_before("gone"), sandbox.read_before("old")) == (b"gone", b"old")
        with pytest.raises(FileNotFoundError, match="did not exist"):
            sandbox.read_before("made")
        sandbox.mark()
        assert sandbox.diff() == [] and sandbox.read_before("old") == b"new"


def test_content_of_large_files_is_not_kept(tmp_path: Path, factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmcell.workspace.diff.MOST_KEPT_OF_FILE", 8)
    monkeypatch.setattr("warmcell.workspace.diff.MOST_KEPT", 12)
    for name, size in (("a", 9), ("b", 8), ("c", 8), ("d", 4), ("e", 0)):
        (tmp_path / name).write_bytes(b"x" * size)
    with Sandbox(tmp_path, guest_factory=factory) as sandbox:
        assert [len(sandbox.read_before(name)) for name in "bde"] == [8, 4, 0]
        for name in "ac":
            with pytest.raises(LimitExceeded, match="too large to be kept"):
                sandbox.read_before(name)


def test_track_changes_can_be_disabled(tmp_path: Path, factory: Factory) -> None:
    with Sandbox(tmp_path, track_changes=False, guest_factory=factory) as sandbox, pytest.raises(LimitExceeded):
        sandbox.diff()


def test_snapshot_restore_and_fork(sandbox: Sandbox, factory: Factory) -> None:
    sandbox.write_file("a", "1")
    taken = sandbox.snapshot()
    sandbox.write_file("a", "2")
    sandbox.write_file("b", "2")
    with sandbox.fork() as copy, sandbox.fork(taken) as earlier:
        assert copy.read_text("a") == "2"
        assert copy.diff() == []
        copy.write_file("a", "3")
        assert earlier.read_text("a") == "1"
        assert not earlier.exists("b")
        assert len({sandbox.id, copy.id, earlier.id}) == 3
    assert sandbox.read_text("a") == "2"
    sandbox.restore(taken)
    assert [entry.name for entry in sandbox.list_dir()] == ["a"]
    assert sandbox.read_text("a") == "1"
    with pytest.raises(SnapshotNotFound):
        sandbox.restore("0" * 32)
    assert len(factory.made) == 3


def test_a_failed_fork_leaves_nothing(sandbox: Sandbox, factory: Factory) -> None:
    with pytest.raises(SnapshotNotFound):
        sandbox.fork("nonsense")
    assert not os.path.exists(factory.guest.config.work_dir)


def test_upload_and_download(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "project"
    (source / "src").mkdir(parents=True)
    (source / "src/main.py").write_text("print(1)")
    (source / "run").write_text("#!/bin/sh")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("/etc/passwd")
    assert sandbox.upload(source, "project") == (2, 17, ("link",))
    assert sandbox.stat("project/run").mode == 0o755
    sandbox.upload(source / "run")
    assert sandbox.read_text("run") == "#!/bin/sh"
    sandbox.upload(source / "run", "project/src")
    sandbox.upload(source / "run", "tools/start")
    assert sandbox.read_text("project/src/run") == sandbox.read_text("tools/start") == "#!/bin/sh"
    sandbox.remove("project/src/run")
    sandbox.upload(sandbox.download("project"), "again", extract=True)
    assert sandbox.read_text("again/src/main.py") == "print(1)"
    assert sandbox.download("run") == b"#!/bin/sh"


OPERATIONS = {
    "exec": ("ls",),
    "sh": ("ls",),
    "run": ("1",),
    "exec_python": ("1",),
    "exec_js": ("1",),
    "spawn": ("ls",),
    "install": ("x",),
    "update_network": ([],),
    "connections": (),
    "processes": (),
    "attach": (2,),
    "session": (),
    "expose": (8000,),
    "watch": (),
    "available_tools": (),
    "fetch": ("http://127.0.0.1/",),
    "read_file": ("a",),
    "read_text": ("a",),
    "write_file": ("a", "x"),
    "list_dir": (),
    "stat": ("a",),
    "exists": ("a",),
    "remove": ("a",),
    "mkdir": ("a",),
    "upload": (b"x", "a"),
    "download": (),
    "apply_patch": ("x",),
    "diff": (),
    "read_before": ("a",),
    "mark": (),
    **dict.fromkeys(("changes", "changes_patch", "commit", "discard", "keep_changes", "branch"), ()),
    "snapshot": (),
    "restore": ("0" * 32,),
    "fork": (),
}


@pytest.mark.attack("PT-13")
@pytest.mark.parametrize("name", OPERATIONS)
def test_everything_after_destroy_is_refused(factory: Factory, name: str) -> None:
    sandbox = Sandbox(guest_factory=factory)
    sandbox.destroy()
    sandbox.destroy()
    with pytest.raises(SandboxDestroyed):
        getattr(sandbox, name)(*OPERATIONS[name])
    assert factory.guest.closed == 1
    assert factory.guest.calls == []


def test_close_is_destroy(factory: Factory) -> None:
    sandbox = Sandbox(guest_factory=factory)
    sandbox.close()
    sandbox.close()
    sandbox.destroy()
    assert factory.guest.closed == 1 and not os.path.exists(sandbox.work_dir)
    with pytest.raises(SandboxDestroyed):
        sandbox.sh("true")


async def test_a_context_that_cannot_be_entered_leaves_nothing(
    factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PathTraversal("x")

    monkeypatch.setattr("warmcell.workspace.workspace.Workspace.begin", fail)
    sandbox = AsyncSandbox(guest_factory=factory)
    with pytest.raises(PathTraversal):
        async with sandbox:
            pass
    assert factory.guest.closed == 1
    assert not os.path.exists(sandbox.work_dir)


async def test_aclose_is_destroy(factory: Factory) -> None:
    sandbox = AsyncSandbox(guest_factory=factory)
    await sandbox.aclose()
    await sandbox.aclose()
    with pytest.raises(SandboxDestroyed):
        await sandbox.sh("true")
    assert factory.guest.closed == 1


@pytest.mark.parametrize("name", ["live", "forkable", "track_changes"])
@pytest.mark.parametrize("value", ["maybe", 1, None])
def test_flags_are_true_or_false(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match="must be true or false") as refused:
        Sandbox(**{name: value})
    assert refused.value.field == name


def test_the_test_above_covers_every_operation() -> None:
    public = {name for name in dir(AsyncSandbox) if not name.startswith("_")}
    others = {"id", "work_dir", "limits", "timeout", "start", "destroy", "aclose", "capabilities", "tools"}
    others |= {"changes_mechanism"}
    assert public - others - OF_SERVERS == set(OPERATIONS)


#: What only `AsyncSandbox` has, for those who pass it on.
OF_SERVERS = {"follow_sh", "connect", "spawn_code", "packages_directory", "use_packages", "local_changes"} | {
    *("network_update", "end_for_review", "enable_session_images", "write_session", "read_session"),
    *("pause_programs", "resume_programs"),
}


@pytest.mark.attack("PT-13")
async def test_methods_for_servers_are_refused_too(factory: Factory) -> None:
    sandbox = AsyncSandbox(guest_factory=factory)
    await sandbox.destroy()
    calls = [sandbox.follow_sh("ls", None), sandbox.connect(80), sandbox.spawn_code("1", timeout=5)]
    for call in (*calls, sandbox.pause_programs(), sandbox.resume_programs()):
        with pytest.raises(SandboxDestroyed):
            await call


@pytest.mark.attack("PT-13")
async def test_runs_of_one_sandbox_overlap(factory: Factory) -> None:
    async with AsyncSandbox(guest_factory=factory) as sandbox:
        factory.guest.delay = 300  # until all twenty are inside
        runs = [asyncio.create_task(sandbox.exec("job", [str(number)])) for number in range(20)]
        await until_async(lambda: len(factory.guest.calls) == 20)
        factory.guest.delay = 0
        factory.guest.wake()
        results = await asyncio.gather(*runs)
        assert [result.stdout for result in results] == [f"command ['job', '{number}']" for number in range(20)]


@pytest.mark.attack("PT-13")
async def test_destroy_ends_what_is_running_with_a_typed_error(factory: Factory) -> None:
    sandbox = AsyncSandbox(guest_factory=factory)
    factory.guest.delay = 60
    runs = [asyncio.ensure_future(sandbox.exec("sleep")) for _ in range(3)]
    files = [asyncio.ensure_future(sandbox.write_file(f"f{number}", "x" * 100_000)) for number in range(5)]
    await until_async(lambda: len(factory.guest.calls) == 3)
    await asyncio.gather(*(sandbox.destroy() for _ in range(3)))
    assert [type(error) for error in await asyncio.gather(*runs, return_exceptions=True)] == [SandboxDestroyed] * 3
    for outcome in await asyncio.gather(*files, return_exceptions=True):
        assert outcome is None or isinstance(outcome, SandboxDestroyed)
    assert (factory.guest.cancelled, factory.guest.closed) == (3, 1)
    assert not os.path.exists(sandbox.work_dir)


@pytest.mark.attack("PT-13")
def test_threads_may_use_and_destroy_one_sandbox_at_the_same_time(factory: Factory) -> None:
    sandbox = Sandbox(guest_factory=factory)
    factory.guest.delay = 0.001
    surprises: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(50):
                sandbox.write_file(f"{number}", "x")
                sandbox.exec("ls")
                sandbox.list_dir()
        except SandboxDestroyed:
            pass
        except BaseException as error:
            surprises.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    sandbox.destroy()
    for thread in threads:
        thread.join(20)
    assert surprises == []
    assert not os.path.exists(sandbox.work_dir)


async def test_a_cancelled_caller_cancels_its_run_only(factory: Factory) -> None:
    async with AsyncSandbox(guest_factory=factory) as sandbox:
        factory.guest.delay = 300  # until the first is cancelled
        first, second = (asyncio.ensure_future(sandbox.exec(name)) for name in ("a", "b"))
        await until_async(lambda: len(factory.guest.calls) == 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        factory.guest.wake()
        assert (await second).ok
        assert factory.guest.cancelled == 1


async def test_a_cancelled_file_operation_is_waited_for(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread holds descriptors; letting go of it would let `destroy` close them under it."""
    begun, cancelled, done = threading.Event(), threading.Event(), threading.Event()

    def slow(*args: object, **kwargs: object) -> bytes:
        begun.set()
        cancelled.wait(PATIENCE)
        time.sleep(0.2)
        done.set()
        return b""

    monkeypatch.setattr("warmcell.workspace.files.read_file", slow)
    sandbox = AsyncSandbox(guest_factory=factory)
    reading = asyncio.ensure_future(sandbox.read_file("a"))
    await until_async(begun.is_set)
    reading.cancel()
    reading.cancel()
    cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert done.is_set()
    await sandbox.destroy()


async def test_closing_again_tries_again_what_failed(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as for lack of threads."""
    sandbox = AsyncSandbox(guest_factory=factory)

    async def fail() -> None:
        raise ExecutionFailed("could not start a thread")

    with monkeypatch.context() as patch, pytest.raises(ExecutionFailed):
        patch.setattr(factory.guest, "aclose", fail)
        await sandbox.aclose()
    await sandbox.aclose()
    assert factory.guest.closed == 1
    assert not os.path.exists(sandbox.work_dir)


def test_a_failing_backend_leaves_no_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail(backend: str, config: object) -> object:
        raise PathTraversal("x")

    with pytest.raises(PathTraversal):
        Sandbox(guest_factory=fail)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_the_blocking_form_has_every_method_with_the_same_signature() -> None:
    for name in OPERATIONS:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Sandbox, AsyncSandbox))
        assert ours.parameters == theirs.parameters
        assert getattr(Sandbox, name).__doc__
    assert inspect.signature(Sandbox).parameters == inspect.signature(AsyncSandbox).parameters
