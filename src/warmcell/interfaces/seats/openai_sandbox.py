"""OpenAI Agents SDK, sandbox agents: `SandboxRunConfig(client=WarmcellSandboxClient())`.

The agent's workspace is the work directory, at /work. Commands share one live cage. State is valid only in the process
that made it; a snapshot keeps the files.
"""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import Any, Literal

from warmcell.core.errors import ExecutionTimeout, SandboxDestroyed, SandboxError
from warmcell.interfaces.seats import framework
from warmcell.interfaces.seats.cage_commands import (
    A_DAY,
    WORK,
    CageCommands,
    create_shared,
    destroy_shared,
    find_shared,
)
from warmcell.lifetime.portal import portal
from warmcell.sandbox.ports import AsyncExposedPort

with framework("openai-agents"):
    from agents.sandbox.errors import (
        ExecTimeoutError,
        ExecTransportError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
        WorkspaceWriteTypeError,
    )
    from agents.sandbox.manifest import Manifest
    from agents.sandbox.session import SandboxSession, SandboxSessionState
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER
    from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
    from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
    from agents.sandbox.snapshot import resolve_snapshot
    from agents.sandbox.types import ExecResult, ExposedPortEndpoint
    from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tar_bytes
    from pydantic import Field

_MAX_ARCHIVE = 1 << 30


class WarmcellSandboxOptions(BaseSandboxClientOptions):
    """`sandbox`: settings of each session's `Sandbox`."""

    type: Literal["warmcell"] = "warmcell"
    sandbox: dict[str, Any] = Field(default_factory=dict)
    exposed_ports: tuple[int, ...] = ()


class WarmcellSandboxState(SandboxSessionState):
    type: Literal["warmcell"] = "warmcell"
    sandbox_id: str
    settings: dict[str, Any] = Field(default_factory=dict)


class WarmcellSandboxSession(BaseSandboxSession):
    """One sandbox, from `create` to the session's shutdown."""

    state: WarmcellSandboxState

    def __init__(self, state: WarmcellSandboxState) -> None:
        self.state = state
        self._ports: dict[int, Any] = {}

    @property
    def _commands(self) -> CageCommands:
        commands = find_shared(self.state.sandbox_id)
        if commands is None:
            raise SandboxDestroyed("the session's sandbox was destroyed")
        return commands

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        words = [str(word) for word in command]
        try:
            env = await self.state.manifest.environment.resolve()
            # Until the workspace exists, commands run without it, to create it.
            cwd = self.state.manifest.root if self.state.workspace_root_ready else None
            result = await portal.call_async(self._commands.run, words, cwd=cwd, env=env, timeout=timeout or A_DAY)
        except ExecutionTimeout as error:
            raise ExecTimeoutError(command=command, timeout_s=timeout, cause=error) from error
        except (SandboxError, KeyError) as error:
            raise ExecTransportError(command=command, cause=error, retryable=False) from error
        return ExecResult(stdout=result.stdout_bytes, stderr=result.stderr_bytes, exit_code=result.exit_code)

    async def read(self, path: Path, *, user: Any = None) -> io.IOBase:
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        found = await self._validate_path_access(path)
        try:
            return io.BytesIO(await portal.call_async(self._commands.read, found.as_posix()))
        except FileNotFoundError as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except (OSError, SandboxError) as error:
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: Any = None) -> None:
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        raw = _bytes_of(data, path)
        found = await self._validate_path_access(path, for_write=True)
        try:
            await portal.call_async(self._commands.write, found.as_posix(), raw)
        except (OSError, SandboxError) as error:
            raise WorkspaceArchiveWriteError(path=found, cause=error) from error

    async def running(self) -> bool:
        return self.state.workspace_root_ready and find_shared(self.state.sandbox_id) is not None

    async def persist_workspace(self) -> io.IOBase:
        root = self._workspace_root_path()
        skipped = " ".join(shell_tar_exclude_args(self._persist_workspace_skip_relpaths()))
        script = f'exec tar {skipped} -C "$1" -cf - .'
        argv = ["sh", "-c", script, "sh", root.as_posix()]
        result = await portal.call_async(self._commands.run, argv, timeout=A_DAY, max_bytes=_MAX_ARCHIVE)
        if not result.ok or result.stdout_truncated:
            raise WorkspaceArchiveReadError(path=root, context={"stderr": result.stderr[-2000:]}, retryable=False)
        return io.BytesIO(result.stdout_bytes)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = self._workspace_root_path()
        raw = _bytes_of(data, root)
        try:
            validate_tar_bytes(raw, allow_external_symlink_targets=False)
        except UnsafeTarMemberError as error:
            raise WorkspaceArchiveWriteError(path=root, context={"detail": str(error)}, cause=error) from error
        script = 'mkdir -p -- "$1" && exec tar -C "$1" -xf -'
        argv = ["sh", "-c", script, "sh", root.as_posix()]
        result = await portal.call_async(self._commands.run, argv, stdin=raw, timeout=A_DAY)
        if not result.ok:
            raise WorkspaceArchiveWriteError(path=root, context={"stderr": result.stderr[-2000:]})

    async def _prepare_backend_workspace(self) -> None:
        """Make the manifest's root, which may be a directory below /work."""
        await self._exec_checked_nonzero("mkdir", "-p", "--", self.state.manifest.root)

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    def _runtime_helpers(self) -> Any:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _current_runtime_helper_cache_key(self) -> object:
        return self.state.sandbox_id

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        if port not in self._ports:
            expose = self._commands.sandbox._async.expose
            self._ports[port] = await portal.make_async(AsyncExposedPort.aclose, expose, port)
        return ExposedPortEndpoint(host=self._ports[port].host, port=self._ports[port].port, tls=False)

    async def _shutdown_backend(self) -> None:
        await destroy_shared(self.state.sandbox_id)


class WarmcellSandboxClient(BaseSandboxClient[WarmcellSandboxOptions]):
    """Makes a sandbox for each session; without options, one with the default policy."""

    backend_id = "warmcell"
    supports_default_options = True

    async def create(
        self, *, snapshot: Any = None, manifest: Manifest | None = None, options: WarmcellSandboxOptions | None = None
    ) -> SandboxSession:
        options = options or WarmcellSandboxOptions()
        manifest = self._validate_manifest_for_create(_move_root_to_work(manifest or Manifest()))
        session_id = uuid.uuid4()
        state = WarmcellSandboxState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            exposed_ports=options.exposed_ports,
            sandbox_id=await create_shared(options.sandbox),
            settings=options.sandbox,
        )
        return self._wrap_session(WarmcellSandboxSession(state))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        await destroy_shared(session._inner.state.sandbox_id)
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        if not isinstance(state, WarmcellSandboxState):
            raise TypeError(f"expected a WarmcellSandboxState, not {type(state).__name__}")
        state.assert_path_grants_rebound()
        is_alive = find_shared(state.sandbox_id) is not None
        if not is_alive:
            state.sandbox_id, state.workspace_root_ready = await create_shared(state.settings), False
        inner = WarmcellSandboxSession(state)
        inner._set_start_state_preserved(is_alive, system=is_alive)
        return self._wrap_session(inner)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, WarmcellSandboxState)


def _move_root_to_work(manifest: Manifest) -> Manifest:
    """Use /work unless the manifest's root is below /work or /tmp: the default root does not exist in a cage."""
    if Path(manifest.root).is_relative_to(WORK) or Path(manifest.root).is_relative_to("/tmp"):
        return manifest
    return manifest.model_copy(update={"root": WORK})


def _bytes_of(data: io.IOBase, path: Path) -> bytes:
    raw = data.read()
    raw = raw.encode() if isinstance(raw, str) else raw
    if not isinstance(raw, bytes | bytearray):
        raise WorkspaceWriteTypeError(path=path, actual_type=type(raw).__name__)
    return bytes(raw)
