"""Commands and files of a sandbox's live cage, as frameworks want them: by any path that the cage has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from warmcell.core.errors import ExecutionTimeout
from warmcell.core.types import MIB, ExecResult
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.blocking import Sandbox
from warmcell.sandbox.processes import AsyncProcess

MAX_OUTPUT = 10 * MIB
MAX_FILE = 256 * MIB
#: The guest's own shell looks, so that links, permissions and special files mean what they mean to it.
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
    22: (OSError, "not a plain file"),
}


class CageCommands:
    """Over a `Sandbox`, whose event loop is the portal's: call the methods by `portal.reach` or `portal.call`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._async: AsyncSandbox = sandbox._async

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        most: int = MAX_OUTPUT,
    ) -> ExecResult:
        """One program, or a line for the shell. What it left running in the background goes on. Cancelled, it and all
        that it started are killed; so is one that prints more than `most` bytes, whose result says truncated.
        """
        argv = [command] if isinstance(command, str) else list(command)
        if isinstance(command, str):
            argv = ["sh", "-c", command]
        if cwd is not None:
            argv = ["sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", cwd, *argv]
        process = await self._async._start_process(
            argv, env=env, stdin=stdin is not None, timeout=timeout, is_heard=True
        )
        feeding = asyncio.ensure_future(_feed(process, stdin or b""))
        try:
            return await self._gathered(process, most)
        except BaseException:
            await process.kill()
            raise
        finally:
            feeding.cancel()

    async def _gathered(self, process: AsyncProcess, most: int) -> ExecResult:
        """All that it prints: what the process keeps of it is less."""
        parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        sizes = {"stdout": 0, "stderr": 0}
        async for event in process.output():
            parts[event.stream].append(event.data)
            sizes[event.stream] += len(event.data)
            if sizes[event.stream] > most:
                await process.kill()
                break
        try:
            ended = await process.wait()
        except ExecutionTimeout as error:
            error.result = _with_output(error.result or ExecResult(), parts, most)
            raise
        return _with_output(ended, parts, most)

    async def read(self, path: str, most: int = MAX_FILE) -> bytes:
        """A file's content, or the `OSError` that a program in the cage would meet."""
        result = await self.run(["sh", "-c", _READ, "sh", path], most=most)
        if result.stdout_truncated:
            raise OSError(f"{path!r} has more than {most} bytes")
        _check(result, path)
        return result.stdout_bytes

    async def write(self, path: str, data: bytes) -> None:
        """Creates or replaces a file, with the directories on the way; links are followed as in the cage."""
        _check(await self.run(["sh", "-c", _WRITE, "sh", path], stdin=data), path)


async def _feed(process: AsyncProcess, data: bytes) -> None:
    if data:
        await process.write(data)
    await process.close_stdin()


def _with_output(result: ExecResult, parts: Mapping[str, list[bytes]], most: int) -> ExecResult:
    stdout, stderr = b"".join(parts["stdout"]), b"".join(parts["stderr"])
    return replace(
        result,
        stdout=stdout[:most].decode("utf-8", "replace"),
        stderr=stderr[:most].decode("utf-8", "replace"),
        stdout_bytes=stdout[:most],
        stderr_bytes=stderr[:most],
        stdout_truncated=len(stdout) > most,
        stderr_truncated=len(stderr) > most,
    )


def _check(result: ExecResult, path: str) -> None:
    if result.ok:
        return
    kind, words = _ERRORS.get(result.exit_code, (OSError, f"failed with status {result.exit_code}"))
    raise kind(result.exit_code, words, path)
