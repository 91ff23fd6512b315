"""NeMo Gym: the sandbox provider `warmcell` (entry point `nemo_gym.sandbox_providers`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from warmcell.core.errors import ExecutionTimeout, SandboxError
from warmcell.core.light import on_error
from warmcell.core.types import Limits
from warmcell.interfaces.seats import framework
from warmcell.interfaces.seats.cage_commands import A_DAY, CageCommands
from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import in_thread

with framework("nemo-gym"):
    from nemo_gym.sandbox.providers.base import (
        SandboxCreateError,
        SandboxExecResult,
        SandboxHandle,
        SandboxSpec,
        SandboxStatus,
    )

#: `return_code` of commands that the sandbox itself ended, as in NeMo Gym's own providers.
_NO_STATUS = -1
_MIB_PER_GIB = 1024


@dataclass
class _RunningSandbox:
    commands: CageCommands
    workdir: str | None
    user: str | None
    is_closed: bool = False


class WarmcellProvider:
    """One live cage per sandbox: this host's programs, or the spec's image.

    Files, `/tmp` and background processes stay from one command to the next. There is no network.
    """

    name = "warmcell"

    def __init__(self, default_timeout_s: float = 180.0, memory_mib: int = 2048) -> None:
        self._default_timeout, self._memory = default_timeout_s, memory_mib
        self._running: dict[str, _RunningSandbox] = {}

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Make a sandbox. Unsupported fields are refused; `cpu` is a request, not a limit, so it is ignored."""
        for what, is_asked in (("gpu", spec.resources.gpu), ("entrypoint", spec.entrypoint), ("ttl_s", spec.ttl_s)):
            if is_asked:
                raise SandboxCreateError(f"{what} is not supported by the provider 'warmcell'")
        user = spec.provider_options.get("user", "root") if spec.image else None
        disk = spec.resources.disk_gib
        limits = Limits(
            memory_mb=spec.resources.memory_mib or self._memory, disk_mb=None if disk is None else disk * _MIB_PER_GIB
        )
        settings = {"image": spec.image, "user": user, "env": dict(spec.env), "limits": limits, "live": True}
        try:
            running = _RunningSandbox(await CageCommands.create(settings), spec.workdir, user)
            handle = SandboxHandle(running.commands.sandbox.id, self.name, running)
            self._running[handle.sandbox_id] = running
            async with on_error(partial(self.close, handle)):  # no other caller has the handle
                await _make_workdir(running)
        except SandboxError as error:
            raise SandboxCreateError(str(error)) from error
        return handle

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        running = _running(handle)
        if user is not None and not _is_same_user(user, running.user):
            raise ValueError(f"user {user!r} is not supported: all programs of this sandbox run as {running.user!r}")
        timeout = timeout_s or self._default_timeout or A_DAY
        try:
            result = await portal.call_async(
                running.commands.run, command, cwd=cwd or running.workdir, env=env, timeout=timeout
            )
        except SandboxError as error:
            kind = "timeout" if isinstance(error, ExecutionTimeout) else "sandbox"
            stdout = error.result.stdout if isinstance(error, ExecutionTimeout) and error.result else None
            return SandboxExecResult(stdout, str(error), _NO_STATUS, kind)
        return SandboxExecResult(result.stdout, result.stderr, result.exit_code)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        data = await in_thread(Path(source_path).read_bytes)
        await portal.call_async(_running(handle).commands.write, target_path, data)

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        data = await portal.call_async(_running(handle).commands.read, source_path)
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        await in_thread(lambda: Path(target_path).write_bytes(data))

    async def endpoint(self, handle: SandboxHandle, port: int) -> Any:
        """Forward a port on loopback to a server in the sandbox (NeMo Gym 0.5 and newer)."""
        from nemo_gym.sandbox.providers.base import SandboxEndpoint

        exposed = await in_thread(partial(_running(handle).commands.sandbox.expose, port))
        return SandboxEndpoint(exposed.url)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        return SandboxStatus.STOPPED if handle.raw.is_closed else SandboxStatus.RUNNING

    async def close(self, handle: SandboxHandle) -> None:
        """Idempotent."""
        if self._running.pop(handle.sandbox_id, None) is not None:
            handle.raw.is_closed = True
            await handle.raw.commands.destroy()

    async def aclose(self) -> None:
        for sandbox_id, running in list(self._running.items()):
            await self.close(SandboxHandle(sandbox_id, self.name, running))


async def _make_workdir(running: _RunningSandbox) -> None:
    made = await portal.call_async(running.commands.run, ["mkdir", "-p", "--", running.workdir or "/tmp"])
    if running.workdir and not made.ok:
        raise SandboxCreateError(f"cannot make the workdir: {made.stderr.strip()[:500]}")


def _running(handle: SandboxHandle) -> _RunningSandbox:
    running: Any = handle.raw
    if not isinstance(running, _RunningSandbox) or running.is_closed:
        raise RuntimeError(f"the sandbox {handle.sandbox_id} was closed")
    return running


def _is_same_user(wanted: str | int, user: str | None) -> bool:
    """Whether they name the same user. Without an image the user has no name (None)."""
    roots = ("root", "0")
    return str(wanted) == user or (str(wanted) in roots and user in roots)
