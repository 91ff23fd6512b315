"""`warmcell sh`: runs a shell script on the current directory, in the WebAssembly toolbox."""

from __future__ import annotations

import os

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.records import dataclass
from warmcell.core.types import ExecRequest, ExecResult, Language, check_env, check_text
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import UsageError
from warmcell.interfaces.cli.messages import PassThrough, Progress, relay
from warmcell.interfaces.cli.render import finish
from warmcell.interfaces.cli.source import Source, read_guest_stdin
from warmcell.languages.registry import find_language

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
    from types import SimpleNamespace
    from typing import Any

    from warmcell.policy.model import NetworkRule, SandboxPolicy
    from warmcell.workspace.mount_points import MountPoint

#: The guest path of the current directory if it is mounted read-only.
READ_ONLY_DIRECTORY = "/here"


def sh(arguments: Namespace | SimpleNamespace) -> int:
    """Run the script on the current directory, read-only unless `--write`."""
    script = check_text("script", options.text(arguments.script))
    settings = _settings(arguments)
    stdin = read_guest_stdin(Source(find_language(Language.COMMAND), inline=script), settings["timeout"])
    outcome: ExecResult | SandboxError
    progress = Progress("running")
    output = None if arguments.json else PassThrough(progress.stop)
    try:
        with progress:
            if arguments.write or arguments.policy or arguments.allow_domain:
                import asyncio

                outcome = asyncio.run(_run_in_sandbox(script, stdin, settings, arguments.write, output))
            else:
                outcome = _run(script, stdin, settings, output)
    except SandboxError as error:
        outcome = error
    is_printed = output is not None and output.has_output
    return finish(outcome, arguments.json, is_printed=is_printed, more_output="send it to a file, with --write")


def _settings(arguments: Namespace | SimpleNamespace) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "backend": "wasm",
        "track_changes": False,
        "timeout": options.seconds("--timeout", arguments.timeout),
        "env": options.environment(arguments.env),
    }
    memory = options.whole_number("--memory", arguments.memory, 1 << 20)
    policy = options.policy_file(arguments.policy) if arguments.policy else None
    if policy is not None:
        settings |= _from_policy(policy, settings["env"])
    rules = () if policy is None else policy.network_rules
    return settings | ({} if memory is None else {"memory_limit_mb": memory}) | _network(arguments.allow_domain, rules)


def _from_policy(policy: SandboxPolicy, env: dict[str, str]) -> dict[str, Any]:
    """A policy as settings of a WebAssembly sandbox, which has no processes."""
    from warmcell.policy.model import AccessMode, SandboxPolicy
    from warmcell.workspace.mount_points import MountPoint

    if policy.allow_network:
        raise UsageError("--policy: 'sh' cannot use the host's network", "use networkRules or --allow-domain")
    try:
        mounts = tuple(
            MountPoint(item.path, item.target, writable=item.mode is AccessMode.READ_WRITE)
            for item in policy.allowed_paths
        )
    except InvalidRequest as error:
        raise UsageError(f"--policy: {error.message}", "for 'sh', paths must be existing directories") from None
    return {"mounts": mounts, "env": {**policy.env, **env}, "policy": SandboxPolicy(limits=policy.limits)}


def _network(domains: list[str], rules: tuple[NetworkRule, ...]) -> dict[str, Any]:
    if not domains and not rules:
        return {}
    from warmcell.net import FetchPolicy

    return {"fetch_policy": FetchPolicy(allowed_domains=tuple(domains), rules=rules)}


@dataclass(frozen=True, slots=True)
class _WasmGuestConfig:
    """The guest configuration of a read-only script."""

    work_dir: str
    mounts: tuple[MountPoint, ...]
    env: Mapping[str, str]
    memory_limit_mb: int | None
    is_work_writable: bool = True
    fuel: None = None
    policy: None = None
    fetch: None = None

    def find_protected(self, directory: str) -> tuple[str, ...]:
        """Nothing is protected: the only writable directory is private."""
        return ()


@dataclass(frozen=True, slots=True)
class _ScriptRun:
    stdin: bytes | None
    timeout: float
    cwd: str = READ_ONLY_DIRECTORY
    follow: None = None


def _run(script: str, stdin: bytes | None, settings: dict[str, Any], output: PassThrough | None) -> ExecResult:
    """Run a read-only script without a `Sandbox` and an event loop, which take longer to import than it runs."""
    from warmcell.backends.wasm.guest import WasmGuest
    from warmcell.workspace.mount_points import MountPoint
    from warmcell.workspace.private_directory import PrivateDirectory

    ExecRequest(Language.COMMAND, script, settings["timeout"])  # refuses an empty or too long script
    with PrivateDirectory("work", is_named=True) as work:
        here = MountPoint(os.getcwd(), READ_ONLY_DIRECTORY, writable=False)
        memory = settings.get("memory_limit_mb")
        guest = WasmGuest(_WasmGuestConfig(work.path, (here,), check_env(settings["env"]), memory))
        try:
            return guest.script_blocking(script, _ScriptRun(stdin, settings["timeout"]), output)
        finally:
            guest.close()


async def _run_in_sandbox(
    script: str, stdin: bytes | None, settings: dict[str, Any], is_writable: bool, output: PassThrough | None
) -> ExecResult:
    from functools import partial

    from warmcell.sandbox.asynchronous import AsyncSandbox
    from warmcell.workspace.mount_points import MountPoint

    follow = None if output is None else partial(relay, output=output)
    here, cwd = os.getcwd(), None
    if not is_writable:
        mounts = (MountPoint(here, READ_ONLY_DIRECTORY, writable=False), *settings.pop("mounts", ()))
        settings, cwd = {**settings, "mounts": mounts}, READ_ONLY_DIRECTORY
    async with AsyncSandbox(here if is_writable else None, **settings) as sandbox:
        return await sandbox.follow_sh(script, follow, cwd=cwd, stdin=stdin)
