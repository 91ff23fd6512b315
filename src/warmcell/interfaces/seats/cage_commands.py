"""Commands, files and archives in a sandbox's live cage. Most adapters for agent frameworks are built on this."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from warmcell.core.errors import ExecutionTimeout
from warmcell.core.light import on_error
from warmcell.core.types import MIB, ExecResult
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.blocking import Sandbox
from warmcell.sandbox.processes import AsyncProcess

WORK = "/work"
MAX_OUTPUT = 10 * MIB
MAX_FILE = 256 * MIB
#: The timeout of commands that set none.
A_DAY = 86_400.0
#: For one file. A guest can replace it by a pipe between the check and `cat`, or `cat` itself in its image.
_FILE_SECONDS = 600.0
#: The exit status of commands that timed out, as with timeout(1).
TIMED_OUT = 124
#: Runs the command line $1 with bash, else with sh.
USE_BASH = 'if command -v bash >/dev/null; then exec bash -c "$1"; fi; exec sh -c "$1"'
#: Checks run in the guest's shell, so that links, permissions and special files are the guest's.
_READ = """
[ -d "$1" ] && exit 21
[ -e "$1" ] || exit 2
[ -f "$1" ] || exit 22
[ -r "$1" ] || exit 13
exec cat -- "$1"
"""
_WRITE = """
[ -d "$1" ] && exit 21
directory=$(dirname -- "$1")
[ -d "$directory" ] || mkdir -p -- "$directory" 2>/dev/null || exit 20
[ ! -e "$1" ] || [ -w "$1" ] || exit 13
[ ! -e "$1" ] || [ -f "$1" ] || exit 22
cat 2>/dev/null > "$1" || exit 13
"""
_ERRORS: dict[int, tuple[type[OSError], str]] = {
    2: (FileNotFoundError, "no such file"),
    13: (PermissionError, "permission denied"),
    20: (NotADirectoryError, "not a directory"),
    21: (IsADirectoryError, "is a directory"),
    22: (OSError, "not a regular file"),
}
#: Raised for a member that conflicts with earlier ones, such as a file below another file.
_CONFLICTS = (FileExistsError, NotADirectoryError, IsADirectoryError)


class CageCommands:
    """Commands in a `Sandbox`. Call `run`, `read` and `write` with `portal.call_async` or `portal.call`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._async: AsyncSandbox = sandbox._async

    @classmethod
    async def create(cls, settings: Mapping[str, Any]) -> CageCommands:
        """Make a sandbox with these settings, from any event loop."""
        return cls(await in_thread(partial(Sandbox, **settings), discard=Sandbox.destroy))

    async def destroy(self) -> None:
        """Destroy the sandbox, from any event loop."""
        await in_thread(self.sandbox.destroy)

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        max_bytes: int = MAX_OUTPUT,
    ) -> ExecResult:
        """Run a program or a shell command line. Background processes that it leaves keep running.

        If this is cancelled or the program prints more than `max_bytes`, everything that it started is killed.
        """
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        if cwd is not None:
            argv = ["sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", cwd, *argv]
        process = await self._async._start_process(
            argv, env=env, stdin=stdin is not None, timeout=timeout, is_followed=True
        )
        feeding = asyncio.ensure_future(_feed(process, stdin or b""))
        try:
            async with on_error(process.kill):
                return await self._collect(process, max_bytes)
        finally:
            feeding.cancel()

    async def _collect(self, process: AsyncProcess, max_bytes: int) -> ExecResult:
        """Collect all output; the process itself keeps less of it."""
        parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        sizes = {"stdout": 0, "stderr": 0}
        async for event in process.output():
            parts[event.stream].append(event.data)
            sizes[event.stream] += len(event.data)
            if sizes[event.stream] > max_bytes:
                await process.kill()
                break
        try:
            ended = await process.wait()
        except ExecutionTimeout as error:
            error.result = _add_output(error.result or ExecResult(), parts, max_bytes)
            raise
        return _add_output(ended, parts, max_bytes)

    async def read(self, path: str, max_bytes: int = MAX_FILE) -> bytes:
        """Read a file. Raises the `OSError` that a program in the cage would get, or `TimeoutError`."""
        result = await self._run_on_file(_READ, path, max_bytes=max_bytes)
        if result.stdout_truncated:
            raise OSError(f"{path!r} has more than {max_bytes} bytes")
        _check(result, path)
        return result.stdout_bytes

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file and its parent directories. Links are followed, inside the cage."""
        _check(await self._run_on_file(_WRITE, path, stdin=data), path)

    async def _run_on_file(self, script: str, path: str, **options: Any) -> ExecResult:
        try:
            return await self.run(["sh", "-c", script, "sh", path], timeout=_FILE_SECONDS, **options)
        except ExecutionTimeout:
            raise TimeoutError(errno.ETIMEDOUT, f"timed out after {_FILE_SECONDS:g} s", path) from None


#: Sandboxes of this process by id, for frameworks that pass ids around.
_shared: dict[str, CageCommands] = {}


async def create_shared(settings: Mapping[str, Any]) -> str:
    """Make a sandbox that `find_shared` finds by its id until `destroy_shared`."""
    commands = await CageCommands.create(settings)
    _shared[commands.sandbox.id] = commands
    return commands.sandbox.id


def find_shared(sandbox_id: str) -> CageCommands | None:
    return _shared.get(sandbox_id)


async def destroy_shared(sandbox_id: str) -> None:
    """Idempotent."""
    commands = _shared.pop(sandbox_id, None)
    if commands is not None:
        await commands.destroy()


async def _feed(process: AsyncProcess, data: bytes) -> None:
    if data:
        await process.write(data)
    await process.close_stdin()


def _add_output(result: ExecResult, parts: Mapping[str, list[bytes]], max_bytes: int) -> ExecResult:
    stdout, stderr = b"".join(parts["stdout"]), b"".join(parts["stderr"])
    return replace(
        result,
        stdout=stdout[:max_bytes].decode("utf-8", "replace"),
        stderr=stderr[:max_bytes].decode("utf-8", "replace"),
        stdout_bytes=stdout[:max_bytes],
        stderr_bytes=stderr[:max_bytes],
        stdout_truncated=len(stdout) > max_bytes,
        stderr_truncated=len(stderr) > max_bytes,
    )


def _check(result: ExecResult, path: str) -> None:
    if result.ok:
        return
    kind, words = _ERRORS.get(result.exit_code, (OSError, f"failed with status {result.exit_code}"))
    raise kind(result.exit_code, words, path)


def unpack_guest_tar(archive: bytes, target: Path) -> None:
    """Extract files and directories below `target`. Skips names that lead out of it, links, devices and sparse files.

    A sparse or compressed archive of a kilobyte could claim terabytes, so it is not decompressed either.
    The filters of `tarfile` keep links, and in many releases of Python a link leads out of the directory past them.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
        for member in opened:
            path = _resolve_below(target, member.name)
            if path is None:
                continue
            try:
                if member.isdir():
                    path.mkdir(parents=True, exist_ok=True)
                elif member.isreg() and not member.issparse():
                    _write(opened, member, path)
            except _CONFLICTS:
                continue


def _resolve_below(target: Path, name: str) -> Path | None:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if name.startswith("/") or ".." in parts or "\0" in name else target.joinpath(*parts)


def _write(opened: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = opened.extractfile(member)
    assert content is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, 0o755 if member.mode & 0o111 else 0o644), "wb") as file:
        shutil.copyfileobj(content, file)
