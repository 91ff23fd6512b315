"""Sandbox over the process backend: real guests in the real cage."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.helpers import require

from warmcell.core.errors import (
    CommandNotFound,
    EnforcerUnavailable,
    ExecutionFailed,
    ExecutionTimeout,
    InvalidRequest,
    PathTraversal,
    SandboxDestroyed,
    SandboxError,
)
from warmcell.core.types import Limits
from warmcell.enforcers.bubblewrap import BubblewrapEnforcer
from warmcell.enforcers.contract import SandboxEnforcer, WrappedCommand
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.portal import portal
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import SandboxPolicy
from warmcell.sandbox.blocking import AsyncSandbox, MountPoint, Sandbox
from warmcell.sandbox.interface import RunOptions
from warmcell.workspace.errors import WorkspaceError

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    with Sandbox(timeout=20) as made:
        yield made


@pytest.fixture
def sandbox(shared: Sandbox) -> Iterator[Sandbox]:
    """One sandbox for all tests of this file, emptied after each."""
    yield shared
    for entry in shared.list_dir():
        shared.sh(f"rm -rf -- '{entry.name}'")


def test_guest_and_host_share_the_files(sandbox: Sandbox) -> None:
    sandbox.write_file("in.txt", "from the host\n")
    result = sandbox.sh("pwd; cat in.txt; echo more >> in.txt; mkdir d; echo guest > d/out.txt")
    assert (result.stdout, result.stderr, result.exit_code) == ("/work\nfrom the host\n", "", 0)
    assert sandbox.read_text("in.txt") == "from the host\nmore\n"
    assert sandbox.read_text("/work/d/out.txt") == "guest\n"
    sandbox.write_file("d/out.txt", "host again\n")
    assert sandbox.sh("cat d/out.txt; rm -r d").stdout == "host again\n"
    assert [entry.name for entry in sandbox.list_dir()] == ["in.txt"]


def test_a_command_gets_exactly_its_arguments(sandbox: Sandbox) -> None:
    arguments = ["a b", "", "'", '"', "$HOME", "*", "-n", "\\n", "; exit 9", "A=b", "new\nline", "é"]
    result = sandbox.exec("printf", ["%s|", *arguments])
    assert result.stdout == "".join(f"{argument}|" for argument in arguments)


@pytest.mark.parametrize("command", ["no-such-command", "A=b", "if", "./missing", "-x", "a;b", "$(true)"])
def test_a_missing_command(sandbox: Sandbox, command: str) -> None:
    with pytest.raises(CommandNotFound) as caught:
        sandbox.exec(command)
    assert caught.value.command == command


def test_a_command_that_ends_with_127_by_itself_is_a_result(sandbox: Sandbox) -> None:
    assert sandbox.exec("sh", ["-c", "exit 127"]).exit_code == 127
    assert sandbox.sh("no-such-command").exit_code == 127


@pytest.mark.attack("S2-28")
@pytest.mark.parametrize(
    "said", ["warmcell: no such command: sh", "sh: 1: foo: not found", "2 sh: No such file or directory"]
)
def test_a_guest_cannot_forge_command_not_found(sandbox: Sandbox, said: str) -> None:
    result = sandbox.exec("sh", ["-c", 'echo kept; echo "$1" >&2; exit "$2"', "sh", said, "127"])
    assert (result.stdout, result.stderr, result.exit_code) == ("kept\n", f"{said}\n", 127)
    assert sandbox.exec("sh", ["-c", 'echo "$1" >&2; exit 126', "sh", said]).exit_code == 126


def test_a_file_that_is_not_executable_names_the_reason(sandbox: Sandbox) -> None:
    sandbox.write_file("plain.txt", "text")
    sandbox.write_file("odd", "no first line\n")
    sandbox.sh("chmod +x odd; mkdir directory")
    for command, why in [
        ("/etc/passwd", "not executable: permission denied"),
        ("./plain.txt", "permission denied"),
        ("./directory", "permission denied"),
    ]:
        with pytest.raises(CommandNotFound, match=why):
            sandbox.exec(command)
    with pytest.raises(CommandNotFound, match="format"):
        sandbox.exec("./odd")
    with pytest.raises(CommandNotFound, match="command not found"):
        sandbox.exec("/etc/passwd/below")
    with pytest.raises(InvalidRequest, match="args"):
        sandbox.exec("true", ["x" * 200_000])


def test_a_command_is_the_program_itself_and_is_found_by_the_guests_own_path(sandbox: Sandbox) -> None:
    sandbox.write_file("bin/mine", "#!/bin/sh\necho mine $0 $1\n")
    sandbox.write_file("first/mine", "not this one")
    sandbox.sh("chmod +x bin/mine")
    assert sandbox.exec("./mine", ["{code}"], cwd="bin").stdout == "mine ./mine {code}\n"
    with Sandbox(sandbox.work_dir, env={"PATH": "/nowhere:/etc/passwd:/work/first:/work/bin:/usr/bin"}) as other:
        assert other.exec("mine", ["it"]).stdout == "mine /work/bin/mine it\n"
    killed = sandbox.exec("sh", ["-c", "kill -TERM $$"])
    assert (killed.exit_code, killed.signal) == (143, 15)
    assert sandbox.exec("sh", ["-c", "echo $PPID"]).stdout in ("0\n", "1\n")


def test_available_tools_are_those_that_exec_finds(sandbox: Sandbox) -> None:
    tools = sandbox.available_tools()
    assert tools == sorted(set(tools)) and {"sh", "cat", "env", "["} <= set(tools)
    sandbox.write_file("bin/mine", "#!/bin/sh\necho mine\n")
    sandbox.write_file("bin/notes", "no program")
    sandbox.sh("chmod +x bin/mine; mkdir bin/directory; printf '#!/bin/sh\\n' > 'bin/a\nb *'; chmod +x bin/a*")
    for policy in (None, SandboxPolicyBuilder().build()):
        with Sandbox(sandbox.work_dir, env={"PATH": "/work/*:/work/bin:/nowhere"}, policy=policy) as other:
            assert other.available_tools() == ["a\nb *", "mine"]
            assert other.exec("mine").stdout == "mine\n"


async def test_available_tools_of_an_async_sandbox_and_after_its_end() -> None:
    async with AsyncSandbox() as sandbox:
        assert "sh" in await sandbox.available_tools()
    with pytest.raises(SandboxDestroyed):
        await sandbox.available_tools()


class _Counting(BubblewrapEnforcer):
    """Another's enforcer, as a sandbox sees it: a program around the guest."""

    name = "counting"
    wrapped = 0

    def wrap_command(self, program: str, args: Sequence[str], policy: SandboxPolicy) -> WrappedCommand:
        _Counting.wrapped += 1
        return super().wrap_command(program, args, policy)


@pytest.mark.parametrize("enforcer", ["bubblewrap", _Counting()], ids=["by name", "an object"])
def test_other_enforcers_give_the_same_answers(enforcer: str | SandboxEnforcer) -> None:
    try:
        BubblewrapEnforcer().probe()
    except EnforcerUnavailable as reason:
        require(False, str(reason))
    name = enforcer if isinstance(enforcer, str) else enforcer.name
    with Sandbox(enforcer=enforcer) as sandbox:
        sandbox.mkdir("sub dir")
        result = sandbox.exec("pwd", cwd="sub dir")
        assert (result.stdout, result.enforced.enforcer) == ("/work/sub dir\n", name)
        forged = sandbox.exec("sh", ["-c", "echo kept; echo 'sh: 1: foo: not found' >&2; exit 127"])
        assert (forged.stdout, forged.exit_code) == ("kept\n", 127)
        with pytest.raises(CommandNotFound):
            sandbox.exec("no-such-command")
    assert isinstance(enforcer, str) or _Counting.wrapped >= 5


def test_config_and_limits_reach_the_backend_and_forks() -> None:
    interpreter = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]
    config = ProcessConfig(python_path=interpreter, preload=["colorsys"], pool_size=0)
    policy = SandboxPolicy(allow_process_spawn=True, limits=Limits(output_bytes=4, open_files=90))
    with (
        Sandbox(config=config, policy=policy, limits=Limits(output_bytes=9, open_files=70)) as sandbox,
        sandbox.fork() as fork,
    ):
        for each in (sandbox, fork):
            assert each.exec("echo", ["123456"]).stdout_bytes == b"1234"
            assert each.sh("ulimit -n").stdout == "70\n"
            assert each.exec_python("import sys; print('colorsys' in sys.modules)").stdout.startswith("True")


def test_a_missing_directory_is_not_a_missing_command(sandbox: Sandbox) -> None:
    """The guest swaps the directory between our check and the start: the error names the directory."""

    async def run_in_missing_directory() -> None:
        guest = sandbox._async._driver.context.guest
        await guest.command(["true"], RunOptions("/work/gone", None, 10))

    with pytest.raises(ExecutionFailed, match=r"/work/gone: No such file"):
        portal.call(run_in_missing_directory)


def test_cwd_stdin_env_and_languages(sandbox: Sandbox) -> None:
    sandbox.mkdir("sub dir")
    assert sandbox.exec("pwd", cwd="sub dir").stdout == "/work/sub dir\n"
    assert sandbox.sh("pwd", cwd="/work/sub dir").stdout == "/work/sub dir\n"
    assert sandbox.exec("cat", stdin=b"in").stdout == "in"
    assert sandbox.exec_python("import os; print(os.getcwd(), 6 * 7)").stdout == "/work 42\n"
    assert sandbox.run("echo $((6 * 7))", "command").stdout == "42\n"


@pytest.mark.attack("FS-03")
def test_a_cwd_elsewhere_is_refused(sandbox: Sandbox) -> None:
    sandbox.sh("ln -s /etc out")
    for cwd in ("/etc", "/", "..", "out", "/work/out", "/work/../etc", "/tmp"):
        with pytest.raises(PathTraversal):
            sandbox.sh("pwd", cwd=cwd)


@pytest.mark.attack("WS-02")
@pytest.mark.attack("WS-04")
@pytest.mark.attack("WS-07")
def test_links_that_a_real_guest_plants_are_not_followed(sandbox: Sandbox, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("canary")
    sandbox.sh(f"ln -s {target} leaf; ln -s {tmp_path} middle; ln -s {tmp_path}/new dangling; mkfifo pipe")
    for name in ("leaf", "middle/target", "middle/new", "dangling", "pipe"):
        for call in (sandbox.read_file, lambda path: sandbox.write_file(path, "evil"), sandbox.remove):
            with pytest.raises((PathTraversal, WorkspaceError)):
                call(name)
    assert os.listdir(tmp_path) == ["target"]
    assert target.read_text() == "canary"


@pytest.mark.attack("WS-02")
@pytest.mark.attack("WS-03")
def test_a_real_guest_that_swaps_links_while_the_host_works(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("canary")
    sandbox.write_file("real/file", "mine")
    loop = (
        f"ln -s {tmp_path} link; while :; do mv -T real spot; mv -T spot real; mv -T link spot; mv -T spot link; done"
    )

    def swap() -> None:
        with pytest.raises(ExecutionTimeout):
            sandbox.sh(loop, timeout=3)

    swapping = threading.Thread(target=swap)
    swapping.start()
    while swapping.is_alive():
        for call in (
            lambda: sandbox.read_text("spot/file"),
            lambda: sandbox.write_file("spot/new", "evil", parents=False),
        ):
            with contextlib.suppress(PathTraversal, WorkspaceError):
                assert call() in ("mine", None)
    swapping.join()
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "canary"


def test_mounts_are_read_only_unless_writable(tmp_path: Path) -> None:
    for name in ("read", "write"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    mounts = [MountPoint(tmp_path / "read", "/data"), MountPoint(tmp_path / "write", "/data2", writable=True)]
    with Sandbox(mounts=mounts, env={"GREETING": "hi"}) as sandbox:
        result = sandbox.sh("cat /data/f /data2/f; echo $GREETING; echo x > /data2/new; echo x > /data/new")
        assert result.stdout == "readwritehi\n"
        assert result.exit_code != 0
        assert sandbox.exec("cat", ["f"], cwd="/data").stdout == "read"
        assert sandbox.diff() == []
    assert os.listdir(tmp_path / "read") == ["f"]
    assert sorted(os.listdir(tmp_path / "write")) == ["f", "new"]


def test_a_read_only_work_directory(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("data")
    with Sandbox(mounts=[MountPoint(tmp_path, "/work")]) as sandbox:
        result = sandbox.sh("cat f; echo x > new")
        assert result.stdout == "data"
        assert result.exit_code != 0
    assert os.listdir(tmp_path) == ["f"]


def test_a_policy_without_processes_denies_them() -> None:
    with Sandbox(policy=SandboxPolicyBuilder().build()) as sandbox:
        assert sandbox.sh("echo built in").stdout == "built in\n"
        assert not sandbox.sh("/bin/ls; exit $?").ok


def test_wasm_refuses_process_settings(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="policy"):
        Sandbox(backend="wasm", policy=SandboxPolicyBuilder().allow_read(tmp_path).build())


@pytest.mark.attack("PT-13")
async def test_concurrent_runs_and_destroy_with_real_processes() -> None:
    sandbox = AsyncSandbox()
    results = await asyncio.gather(*(sandbox.sh(f"echo {number} > f{number}; cat f{number}") for number in range(8)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(8)]
    running = [asyncio.ensure_future(sandbox.sh("sleep 30")) for _ in range(3)]
    await asyncio.sleep(0.3)
    async with asyncio.timeout(10):
        await sandbox.destroy()
    for outcome in await asyncio.gather(*running, return_exceptions=True):
        assert isinstance(outcome, SandboxDestroyed)
    assert not os.path.exists(sandbox.work_dir)


def test_destroy_removes_what_the_guest_locked() -> None:
    sandbox = Sandbox()
    sandbox.sh("mkdir -p a/b/c; touch a/b/f; chmod 0 a/b/c a/b; chmod 0 a; chmod 0 .")
    sandbox.destroy()
    assert not os.path.exists(sandbox.work_dir)


def test_fork_runs_over_its_own_copy(sandbox: Sandbox) -> None:
    sandbox.sh("echo 1 > n; chmod 755 n")
    with sandbox.fork() as copy:
        assert copy.sh("cat n; echo 2 > n; ls -l n | cut -c1-10").stdout == "1\n-rwxr-xr-x\n"
        assert [change.kind for change in copy.diff()] == ["modified"]
    assert sandbox.read_text("n") == "1\n"


def test_a_patch_and_an_archive_for_a_real_guest(sandbox: Sandbox) -> None:
    sandbox.write_file("app.py", "print('one')\n")
    sandbox.apply_patch("--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-print('one')\n+print('two')\n")
    sandbox.sh("tar cf out.tar app.py")
    sandbox.upload(sandbox.read_file("out.tar"), "unpacked", extract=True)
    assert sandbox.exec("cat", ["unpacked/app.py"]).stdout == "print('two')\n"


@pytest.mark.attack("WS-10")
def test_a_tar_of_a_guest_with_links_is_refused(sandbox: Sandbox) -> None:
    sandbox.sh("ln -s /etc evil; tar cf out.tar evil")
    with pytest.raises(SandboxError, match="symbolic link"):
        sandbox.upload(sandbox.read_file("out.tar"), "unpacked", extract=True)
    assert not sandbox.exists("unpacked")
