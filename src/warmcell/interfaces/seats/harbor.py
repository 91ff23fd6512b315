"""Harbor: `--environment-import-path warmcell.interfaces.seats.harbor:WarmcellEnvironment`. One sandbox per trial."""

from __future__ import annotations

import io
import os
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

from warmcell.core.errors import BuildFailed, ExecutionTimeout, ImageNotFound
from warmcell.core.types import Limits
from warmcell.images import Image, ImageStore
from warmcell.interfaces.seats import framework
from warmcell.interfaces.seats.cage_commands import A_DAY, MAX_FILE, TIMED_OUT, USE_BASH, CageCommands, unpack_guest_tar
from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import in_thread
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import SandboxPolicy

with framework("harbor"):
    from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
    from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
    from harbor.environments.definition import require_agent_environment_definition, should_use_prebuilt_docker_image
    from harbor.models.task.config import NetworkMode, NetworkPolicy

_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_MEMORY_MB, _DISK_MB = 4096, 8192


class WarmcellEnvironment(BaseEnvironment):
    """The task's image in a live cage, as `root` (without capabilities on the host).

    `hosts` are names, separated by commas, that a task with a public network, and the build of its image, may reach:
    `--ek hosts=example.com,*.example.org`. Without it, public networks are empty. `store` is the image store.
    """

    def __init__(self, *args: Any, hosts: str = "", store: str | None = None, **kwargs: Any) -> None:
        self._hosts = [name.strip() for name in hosts.split(",") if name.strip()]
        self._store = ImageStore(store)
        self._commands: CageCommands | None = None
        self._image: Image | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "warmcell"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            dynamic_network_policy=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        for name in _COMPOSE:
            if (self.environment_dir / name).exists():
                raise ValueError(f"{name} is not supported: a Warmcell environment is one container, not several")
        require_agent_environment_definition(
            self.environment_dir, docker_image=self.task_env_config.docker_image, extra_docker_compose_paths=[]
        )

    # ---- start and stop ----

    async def start(self, force_build: bool) -> None:
        self._image = await in_thread(partial(self._find_image, force_build))
        limits = Limits(
            memory_mb=self._effective_memory_mb or _MEMORY_MB,
            disk_mb=self._effective_storage_mb or _DISK_MB,
            processes=1024,
            open_files=4096,
        )
        settings = {"image": self._image, "user": "root", "env": self._startup_env(), "limits": limits}
        self._commands = await CageCommands.create({**settings, "policy": self._widest_policy(), "live": True})
        await self._apply_network_policy(self.network_policy)
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Destroy the sandbox, whatever `delete` is."""
        commands, self._commands = self._commands, None
        if commands is not None:
            await commands.destroy()

    def _find_image(self, force_build: bool) -> Image:
        wanted = self.task_env_config.docker_image
        if should_use_prebuilt_docker_image(self.environment_dir, docker_image=wanted, force_build=force_build):
            try:
                return self._store.get(wanted)
            except ImageNotFound:
                return self._store.pull(wanted)
        name = f"harbor/{self.environment_id[:32].lower()}:latest"
        try:
            if not force_build:
                return self._store.get(name)
        except ImageNotFound:
            pass
        try:
            return self._store.build(self.environment_dir, name=name, policy=_policy(self._hosts))
        except BuildFailed as error:
            raise SandboxBuildFailedError(str(error)) from error

    # ---- network ----

    def _hosts_of(self, policy: NetworkPolicy) -> list[str]:
        if policy.network_mode == NetworkMode.PUBLIC:
            return self._hosts
        return list(policy.allowed_hosts) if policy.network_mode == NetworkMode.ALLOWLIST else []

    def _widest_policy(self) -> SandboxPolicy:
        """The policy with everything that any phase may reach; `_apply_network_policy` narrows it."""
        policies = (self._network_policy, *self._phase_network_policies)
        return _policy(dict.fromkeys(name for policy in policies for name in self._hosts_of(policy)))

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        if network_policy.network_mode == NetworkMode.PUBLIC and not self._hosts:
            self.logger.warning("the task's network is public, but nothing is reachable: name hosts with --ek hosts=")
        if self._widest_policy().network_rules:
            await in_thread(partial(self._sandbox.sandbox.update_network, self._hosts_of(network_policy)))

    # ---- commands and files ----

    @property
    def _sandbox(self) -> CageCommands:
        if self._commands is None:
            raise RuntimeError("the environment has not been started")
        return self._commands

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        wanted = self._resolve_user(user)
        if wanted not in (None, "root", 0, "0"):
            raise ValueError(f"user {wanted!r} is not supported: all programs of a Warmcell environment run as root")
        place = cwd or self.task_env_config.workdir or (self._image.config.workdir if self._image else "/")
        shell = ["sh", "-c", USE_BASH, "sh", command]
        merged, timeout = self._merge_env(env), timeout_sec or A_DAY
        try:
            result = await portal.call_async(self._sandbox.run, shell, cwd=place, env=merged, timeout=timeout)
        except ExecutionTimeout as error:
            printed = error.result
            stdout, stderr = (printed.stdout, printed.stderr) if printed else ("", "")
            return ExecResult(stdout=stdout, stderr=f"{stderr}\n{error}", return_code=TIMED_OUT)
        await self._report_output(result.stdout, result.stderr)
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=result.exit_code)

    async def _report_output(self, stdout: str, stderr: str) -> None:
        callback = self._output_callback()
        if callback is not None:
            for text, stream in ((stdout, "stdout"), (stderr, "stderr")):
                if text:
                    await callback(text, stream)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        data = await in_thread(Path(source_path).read_bytes)
        await portal.call_async(self._sandbox.write, target_path, data)
        if os.access(source_path, os.X_OK):
            await self._check(["chmod", "755", target_path])

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        archive = await in_thread(partial(_pack, Path(source_dir)))
        await self._check(["sh", "-c", 'mkdir -p -- "$1" && exec tar -xf - -C "$1"', "sh", target_dir], archive)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        data = await portal.call_async(self._sandbox.read, source_path)
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        await in_thread(partial(Path(target_path).write_bytes, data))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        archive = await self._check(["tar", "-cf", "-", "-C", source_dir, "."])
        await in_thread(partial(unpack_guest_tar, archive, Path(target_dir)))

    async def _check(self, argv: list[str], stdin: bytes | None = None) -> bytes:
        result = await portal.call_async(self._sandbox.run, argv, stdin=stdin, timeout=A_DAY, max_bytes=MAX_FILE)
        if not result.ok or result.stdout_truncated:
            reason = f"more than {MAX_FILE} bytes" if result.stdout_truncated else result.stderr.strip()[:500]
            raise RuntimeError(f"{argv[0]} failed with status {result.exit_code}: {reason}")
        return result.stdout_bytes


def _policy(hosts: Any) -> SandboxPolicy:
    builder = SandboxPolicyBuilder().allow_process_spawn()
    for name in hosts:
        builder = builder.allow_domain(name)
    return builder.build()


def _pack(directory: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(directory, arcname=".", filter=_as_root)
    return buffer.getvalue()


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
