"""`warmcell sh`: what it asks of a sandbox."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from warmcell import ExecResult, ExecutionTimeout, Limits, MountPoint, NetworkRule, SandboxError, SandboxPolicy
from warmcell.net import FetchPolicy


class ScriptedSandbox:
    """Records how it was made and called."""

    outcome: ExecResult | SandboxError = ExecResult(stdout="3\n", exit_code=1)
    made: tuple[tuple[Any, ...], dict[str, Any]]
    called: tuple[str, dict[str, Any]]
    is_destroyed = False

    def __init__(self, *args: Any, **options: Any) -> None:
        ScriptedSandbox.made = (args, options)

    async def __aenter__(self) -> ScriptedSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        ScriptedSandbox.is_destroyed = True

    async def follow_sh(self, script: str, follow: Any, **options: Any) -> ExecResult:
        ScriptedSandbox.called = (script, options)
        if isinstance(self.outcome, SandboxError):
            raise self.outcome
        return self.outcome


class ScriptedGuest:
    """The same for what a script that may only look runs in."""

    outcome: ExecResult | SandboxError = ExecResult(stdout="3\n", exit_code=1)
    world: Any
    called: tuple[str, Any]
    is_closed = False

    def __init__(self, world: Any) -> None:
        ScriptedGuest.world = world

    def script_blocking(self, script: str, job: Any, listener: Any) -> ExecResult:
        ScriptedGuest.called = (script, job)
        if isinstance(self.outcome, SandboxError):
            raise self.outcome
        return self.outcome

    def close(self) -> None:
        ScriptedGuest.is_closed = True


@pytest.fixture(autouse=True)
def guest(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedGuest]:
    module = ModuleType("warmcell.backends.wasm.guest")
    module.WasmGuest = ScriptedGuest  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "warmcell.backends.wasm.guest", module)
    monkeypatch.setattr("warmcell.interfaces.cli._start_ahead", lambda *_, **__: None)
    monkeypatch.setattr("warmcell.backends.wasm.pool.WorkerPool.start_ahead", lambda _: None)
    monkeypatch.setattr(ScriptedGuest, "is_closed", False)
    return ScriptedGuest


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedSandbox]:
    module = ModuleType("warmcell.sandbox.asynchronous")
    module.AsyncSandbox = ScriptedSandbox  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "warmcell.sandbox.asynchronous", module)
    monkeypatch.setattr(ScriptedSandbox, "is_destroyed", False)
    return ScriptedSandbox


def test_the_current_directory_is_read_only(warmcell: Any, guest: Any, stdin: Any) -> None:
    stdin(b"in")
    ended = warmcell("sh", "wc -l *", "--timeout", "5", "--env", "A=1", "--memory", "64")
    assert (ended.status, ended.stdout) == (1, "3\n")
    world, (script, job) = guest.world, guest.called
    assert world.mounts == (MountPoint(os.getcwd(), "/here", writable=False),)
    assert (world.env, world.memory_limit_mb, world.fetch, world.policy) == ({"A": "1"}, 64, None, None)
    assert (script, job.cwd, job.stdin, job.timeout) == ("wc -l *", "/here", b"in", 5)
    assert guest.is_closed and not os.path.exists(world.work_dir)


def test_write_must_be_said(warmcell: Any, sandbox: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    warmcell("sh", "touch x", "--write")
    args, options = sandbox.made
    assert args == (str(tmp_path),)
    assert "mounts" not in options
    assert options["track_changes"] is False  # hashing the whole directory first would be for nothing


def test_domains_become_a_fetch_policy(warmcell: Any, sandbox: Any) -> None:
    warmcell("sh", "curl example.com", "--allow-domain", "example.com")
    policy = sandbox.made[1]["fetch_policy"]
    assert isinstance(policy, FetchPolicy)
    assert tuple(policy.allowed_domains) == ("example.com",)


@pytest.mark.parametrize("words", [[], ["--write"]])
def test_a_timeout_has_its_status(
    warmcell: Any, guest: Any, sandbox: Any, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    for kind in (guest, sandbox):
        monkeypatch.setattr(kind, "outcome", ExecutionTimeout(1, ExecResult(stdout="so far")))
    ended = warmcell("sh", "sleep 9", *words)
    assert (ended.status, ended.stdout) == (124, "so far")
    assert sandbox.is_destroyed if words else guest.is_closed


def test_output_that_was_cut_has_a_hint_that_this_command_can_follow(
    warmcell: Any, guest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest, "outcome", ExecResult(stdout="x", stdout_bytes=b"x", stdout_truncated=True))
    ended = warmcell("sh", "yes")
    assert "truncated after 1 bytes\nhint: send it to a file, with --write\n" in ended.stderr


@pytest.mark.attack("PT-02")
@pytest.mark.parametrize("argv", [[], ["a\0b"], ["ls", "--timeout", "0"], ["ls", "--memory", "x"], ["ls", "more"]])
def test_wrong_usage(warmcell: Any, sandbox: Any, argv: list[str]) -> None:
    assert warmcell("sh", *argv).status == 2


def test_a_policy_file_in_the_words_of_the_toolbox(warmcell: Any, sandbox: Any, tmp_path: Path) -> None:
    text = f"""
allowProcessSpawn = true
env = {{ A = "policy", B = "policy" }}
allowedPaths = [{{ path = "{tmp_path}", mode = "readWrite", guestPath = "/data" }}]
networkRules = [{{ domain = "example.com", ports = [8443] }}]
limits = {{ memoryMb = 64, diskMb = 9 }}
"""
    (tmp_path / "p.toml").write_text(text)
    assert warmcell("sh", "ls", "--policy", str(tmp_path / "p.toml"), "--env", "B=option").status == 1
    options = sandbox.made[1]
    assert options["mounts"][1:] == (MountPoint(tmp_path, "/data", writable=True),)
    assert options["env"] == {"A": "policy", "B": "option"}
    assert options["fetch_policy"].rules == (NetworkRule("example.com", (8443,)),)
    assert options["policy"] == SandboxPolicy(limits=Limits(memory_mb=64, disk_mb=9))


def test_what_the_toolbox_cannot_give_is_refused(warmcell: Any, sandbox: Any, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"allowNetwork": true}')
    ended = warmcell("sh", "ls", "--policy", str(tmp_path / "p.json"))
    assert ended.status == 2 and "networkRules" in ended.stderr
