"""What a sandbox makes of its settings and of a command before a backend sees them."""

from __future__ import annotations

import subprocess
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from warmcell import BackendUnavailable, CommandNotFound, FakeBackend, FetchPolicy, InvalidRequest, Sandbox
from warmcell.core.types import BackendCapabilities, EnforcedLimits, ExecRequest, ExecResult, Limits
from warmcell.languages.config import ProcessConfig
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy
from warmcell.policy.resolve import effective_limits
from warmcell.sandbox.local.guest_config import GuestConfig, sandbox_policy
from warmcell.sandbox.local.guests import command_line, in_directory, quote
from warmcell.workspace.mount_points import MountPoint


@pytest.mark.parametrize(
    "word", ["plain", "", "a b", "it's", "$HOME", "A=b", "if", "-x", "*", "\\", "new\nline", "`id`", "#"]
)
def test_quoting_round_trips(word: str) -> None:
    assert quote(word).startswith("'") or quote(word).startswith("\"'")
    printed = subprocess.run(["sh", "-c", f"printf %s {quote(word)}"], capture_output=True, text=True, check=True)
    assert printed.stdout == word


def test_a_command_runs_as_one_program(tmp_path: Path) -> None:
    """In a plain shell: the directory and the words, without any cage."""
    script = in_directory(command_line(["printf", "%s|", "a b", "; exit 3"]), str(tmp_path))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("a b|; exit 3|", 0)


def test_a_script_keeps_its_line_numbers() -> None:
    assert in_directory("one\ntwo", "/work") == "one\ntwo"
    assert in_directory("one\ntwo", "/work/a b").splitlines()[1] == "two"


def test_without_a_policy_processes_are_allowed_and_nothing_else(tmp_path: Path) -> None:
    mounts = (MountPoint(tmp_path, "/data"), MountPoint(tmp_path, "/data2", writable=True))
    host = str(tmp_path.resolve())
    assert sandbox_policy(GuestConfig("/x", mounts=mounts, memory_limit_mb=64)) == SandboxPolicy(
        allowed_paths=(
            AllowedPath("/x", AccessMode.READ_WRITE, "/work"),
            AllowedPath(host, AccessMode.READ_ONLY, "/data"),
            AllowedPath(host, AccessMode.READ_WRITE, "/data2"),
        ),
        allow_process_spawn=True,
    )


def test_a_policy_gets_the_workspace_and_keeps_the_rest() -> None:
    policy = SandboxPolicyBuilder().allow_domain("example.org").limits(Limits(memory_mb=9)).build()
    made = sandbox_policy(GuestConfig("/x", is_work_writable=False, policy=policy))
    assert made.allowed_paths == (AllowedPath("/x", AccessMode.READ_ONLY, "/work"),)
    assert not made.allow_process_spawn
    assert (made.network_rules, made.limits) == (policy.network_rules, policy.limits)


@pytest.mark.parametrize(
    ("said_by_policy", "said_by_sandbox", "holds"),
    [(None, 2048, 2048), (None, None, 512), (1024, None, 1024), (1024, 2048, 1024), (2048, 1024, 1024)],
)
def test_a_policy_without_a_memory_limit_keeps_the_default(
    said_by_policy: int | None, said_by_sandbox: int | None, holds: int
) -> None:
    policy = SandboxPolicy(limits=Limits(memory_mb=said_by_policy, disk_mb=64))
    config = GuestConfig("/x", policy=policy, memory_limit_mb=said_by_sandbox)
    limits = effective_limits(sandbox_policy(config), None, config.memory_limit_mb)
    assert (limits.memory_mb, limits.disk_mb) == (holds, 64)


class _Installed:
    """What another package's backend looks like to a sandbox."""

    name = "mine"

    def __init__(self, policy: SandboxPolicy) -> None:
        self.policy = policy
        self.seen: list[str | bytes] = []
        self.fake = FakeBackend(capabilities=BackendCapabilities(("intercal", "command"), "fake", EnforcedLimits()))

    def capabilities(self) -> BackendCapabilities:
        return self.fake.capabilities()

    async def execute(self, request: ExecRequest) -> ExecResult:
        self.seen.append(request.code)
        is_missing = "no-such-command" in request.code
        return ExecResult(
            stdout=f"{request.language}:{self.policy.allowed_paths[0].target}", exit_code=1 if is_missing else 0
        )

    async def aclose(self) -> None:
        await self.fake.aclose()


def test_a_sandbox_over_another_packages_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("mine", f"{__name__}:_Installed", "warmcell.backends")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry] if group == entry.group else [])
    with Sandbox(backend="mine") as sandbox:
        assert sandbox.run("please", "intercal").stdout == "intercal:/work"
        assert sandbox.sh("ls").stdout == "command:/work"
        assert sandbox.exec("ls", ["a b"]).stdout == "command:/work"
        assert sandbox._async._driver.context.guest._backend.seen[-2:] == [
            "command -v 'ls' >/dev/null 2>&1",
            "'ls' 'a b'",
        ]
        with pytest.raises(CommandNotFound):
            sandbox.exec("no-such-command")
    with pytest.raises(InvalidRequest, match="one of process, wasm, fake, ray, mine"):
        Sandbox(backend="docker")
    with pytest.raises(BackendUnavailable, match="fetch_policy"):
        Sandbox(backend="mine", fetch_policy=FetchPolicy(allowed_domains=("x.org",)))


@pytest.mark.parametrize("backend", ["wasm", "fake"])
@pytest.mark.parametrize(("field", "value"), [("config", ProcessConfig()), ("enforcer", "native")])
def test_process_settings_are_refused_by_other_backends(backend: str, field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match="only with the process backend") as caught:
        Sandbox(backend=backend, **{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"), [("config", {"pool_size": 0}), ("enforcer", None), ("limits", {"memory_mb": 9})]
)
def test_settings_of_another_kind_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Sandbox(**{field: value})
    assert caught.value.field == field


def test_a_policy_without_processes_reports_denials() -> None:
    with Sandbox(policy=SandboxPolicyBuilder().env("A", "1").build()) as sandbox:
        assert sandbox.sh("echo $A").stdout == "1\n"
        refused = sandbox.sh("ls; true")
    assert not refused.ok
    assert [(denial.kind, denial.rule) for denial in refused.denials] == [("process", "allowProcessSpawn")]
    assert "allow_process_spawn()" in refused.denials[0].hint
