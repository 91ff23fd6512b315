"""Implements the tools over a sandbox. Arguments have been checked; exceptions pass to `ToolCalls`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from warmcell.backends.output_callbacks import OnText
from warmcell.core.door_text import cap
from warmcell.core.errors import InvalidRequest, MemoryExceeded, SandboxError, SessionEnded
from warmcell.core.types import BackendCapabilities, ExecResult
from warmcell.sandbox.ports import AsyncExposedPort
from warmcell.sandbox.tools.answers import failure, partial_result, success
from warmcell.sessions.cell_results import CellResult, DisplayData
from warmcell.workspace.diff import FsChange
from warmcell.workspace.files import DirEntry

MAX_ENTRIES = 1000
MAX_PORTS = 16
MAX_FILE_BYTES = 16 * 1024 * 1024
#: Gets "stdout" or "stderr" and text as it arrives; may return an awaitable.
OnOutput = Callable[[str, str], object]
DIRECTORY = ".tool-output"
#: Output is saved of this many runs, so that an agent that prints all day does not fill its disk.
MAX_SAVED_RUNS = 20
MAX_OUTPUTS = 20
_IMAGES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
_TEXTS = ("text/html", "text/markdown", "text/latex", "image/svg+xml", "text/plain")


class ToolSession(Protocol):
    async def run(
        self, code: str, *, timeout: float, on_stdout: OnText | None = None, on_stderr: OnText | None = None
    ) -> CellResult: ...
    async def close(self) -> None: ...


class ToolSandbox(Protocol):
    @property
    def timeout(self) -> float: ...
    def capabilities(self) -> BackendCapabilities: ...

    async def run(
        self,
        code: str,
        language: str,
        *,
        stdin: str | None,
        timeout: float,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult: ...

    async def sh(
        self,
        script: str,
        *,
        cwd: str,
        stdin: str | None,
        timeout: float,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult: ...

    async def read_file(self, path: str, /, *, max_bytes: int) -> bytes: ...
    async def write_file(self, path: str, data: str | bytes, /) -> None: ...
    async def list_dir(self, path: str, /) -> list[DirEntry]: ...
    async def remove(self, path: str, /) -> None: ...
    async def apply_patch(self, patch: str, /) -> list[FsChange]: ...
    async def expose(self, port: int) -> AsyncExposedPort: ...
    def session(self, language: str) -> Awaitable[ToolSession]: ...


class SavedOutput:
    """Numbered files of the tools of one sandbox. The oldest are removed when there are too many."""

    def __init__(self, sandbox: ToolSandbox, max_text: int) -> None:
        self._sandbox = sandbox
        self._max_text = max_text
        self._number = 0
        self._saved: list[list[str]] = []

    async def save(self, result: ExecResult | None) -> dict[str, Any]:
        """`full_output`: the file of each stream that is too long. Streams that could not be saved are left out."""
        if result is None:
            return {}
        self._number += 1
        number, paths = self._number, {}
        for stream, text, raw in (
            ("stdout", result.stdout, result.stdout_bytes),
            ("stderr", result.stderr, result.stderr_bytes),
        ):
            if len(text) > self._max_text:
                path = f"{DIRECTORY}/{number}-{stream}.txt"
                # The guest may have put something in the way or filled the disk; then it loses the file.
                with contextlib.suppress(SandboxError):
                    await self._sandbox.write_file(path, raw)
                    paths[stream] = path
        await self._remove_oldest(list(paths.values()))
        return {"full_output": paths} if paths else {}

    async def _remove_oldest(self, paths: list[str]) -> None:
        if paths:
            self._saved.append(paths)
        while len(self._saved) > MAX_SAVED_RUNS:
            for path in self._saved.pop(0):
                with contextlib.suppress(SandboxError):
                    await self._sandbox.remove(path)


class Interpreters:
    """The sessions of the tools of one sandbox. Each starts with its first call, and again after it ended."""

    def __init__(self, sandbox: ToolSandbox) -> None:
        self._sandbox = sandbox
        self._sessions: dict[str, ToolSession] = {}
        self._lock = asyncio.Lock()

    async def run(self, language: str, code: str, timeout: float, *, restart: bool, **listeners: Any) -> CellResult:
        async with self._lock:
            session = self._sessions.get(language)
            if session is not None and restart:
                del self._sessions[language]
                await session.close()
            if language not in self._sessions:
                self._sessions[language] = await self._sandbox.session(language)
            session = self._sessions[language]
        try:
            return await session.run(code, timeout=timeout, **listeners)
        except (SessionEnded, MemoryExceeded) as error:
            if self._sessions.get(language) is session:
                del self._sessions[language]
                with contextlib.suppress(SandboxError):
                    await session.close()  # an ended one keeps its descriptors until then
            error.hint = "the variables are lost; the next call starts a new interpreter"
            raise


def as_run(cell: CellResult) -> ExecResult:
    """A cell's result as that of a run: an exception ends stderr and gives exit code 1."""
    raised = "" if cell.error is None else cell.error.traceback or str(cell.error)
    separator = "\n" if cell.stderr and raised and not cell.stderr.endswith("\n") else ""
    return ExecResult(
        stdout=cell.stdout,
        stderr=f"{cell.stderr}{separator}{raised}",
        exit_code=0 if cell.ok else 1,
        duration=cell.duration,
        stdout_truncated=cell.stdout_truncated,
        stderr_truncated=cell.stderr_truncated,
        usage=cell.usage,
        denials=cell.denials,
    )


async def answer_for(cell: CellResult, sandbox: ToolSandbox, max_text: int, number: int) -> dict[str, Any]:
    """As for a run, with the value of the last line and what was displayed: text inline, images as files.

    `number` is the call's: every interpreter counts its cells from 1, also after a restart.
    """
    answer = success(as_run(cell), max_text) | {"execution_count": cell.execution_count}
    if cell.value is not None:
        answer["value"] = cap(cell.value, max_text)[0]
    displayed = [item for item in cell.outputs if not item.is_result or set(item.mime) != {"text/plain"}]
    outputs = []
    for place, item in enumerate(displayed[:MAX_OUTPUTS], start=1):
        outputs.append(await _output(item, sandbox, f"{DIRECTORY}/cell-{number}-{place}", max_text))
    if outputs:
        answer["outputs"] = outputs
    if cell.outputs_truncated or len(displayed) > MAX_OUTPUTS:
        answer["truncated"] = True
    return answer


async def _output(item: DisplayData, sandbox: ToolSandbox, path: str, max_text: int) -> dict[str, Any]:
    for mime, suffix in _IMAGES.items():
        data = item.mime.get(mime)
        if isinstance(data, str):
            # The guest may have sent invalid base64, or put something in the way of the file.
            with contextlib.suppress(SandboxError, ValueError):
                await sandbox.write_file(f"{path}.{suffix}", base64.b64decode(data, validate=True))
                return {"mime": mime, "path": f"{path}.{suffix}"}
    mime, text = next(((name, item.mime[name]) for name in _TEXTS if name in item.mime), ("text/plain", ""))
    return {"mime": mime, "text": cap(text if isinstance(text, str) else str(text), max_text)[0]}


class Calls:
    """The tools of one sandbox: one method each, with the name of the tool."""

    def __init__(self, sandbox: ToolSandbox, max_text: int, stateful_languages: Sequence[str] = ()) -> None:
        self._sandbox = sandbox
        self._max_text = max_text
        self._saved = SavedOutput(sandbox, max_text)
        self._interpreters = Interpreters(sandbox)
        #: Numbers the cells of all interpreters, for the names of their images.
        self._cells = itertools.count(1)
        self._stateful_languages = tuple(stateful_languages)
        self._ports: dict[int, AsyncExposedPort] = {}
        #: Held while a port is exposed: calls at the same time must not expose it twice, or more than the limit.
        self._exposing = asyncio.Lock()

    async def run_code(self, args: dict[str, Any], on_output: OnOutput | None = None) -> dict[str, Any]:
        language, code, stdin = args["language"], args["code"], args["stdin"]
        timeout, listeners = float(args["timeout_secs"]), _callbacks(on_output)
        if language in self._stateful_languages and stdin is None:
            restart = bool(args["restart"])
            return await self._answer(self._interpreters.run(language, code, timeout, restart=restart, **listeners))
        return await self._answer(self._sandbox.run(code, language, stdin=stdin, timeout=timeout, **listeners))

    async def run_command(self, args: dict[str, Any], on_output: OnOutput | None = None) -> dict[str, Any]:
        run = self._sandbox.sh(
            args["command"],
            cwd=args["cwd"],
            stdin=args["stdin"],
            timeout=float(args["timeout_secs"]),
            **_callbacks(on_output),
        )
        return await self._answer(run)

    async def _answer(self, run: Awaitable[ExecResult | CellResult]) -> dict[str, Any]:
        try:
            result = await run
        except Exception as error:
            return failure(error, self._max_text) | await self._saved.save(partial_result(error))
        if isinstance(result, ExecResult):
            return success(result, self._max_text) | await self._saved.save(result)
        answer = await answer_for(result, self._sandbox, self._max_text, next(self._cells))
        return answer | await self._saved.save(as_run(result))

    async def read_file(self, args: dict[str, Any]) -> dict[str, Any]:
        raw = await self._sandbox.read_file(args["path"], max_bytes=MAX_FILE_BYTES)
        answer: dict[str, Any] = {"status": "success", "path": args["path"], "size": len(raw)}
        if b"\0" in raw[:8192]:
            return answer | {"is_binary": True, "content": ""}
        # Not `splitlines`: other tools and patches do not count form feeds and U+2028 as ends of lines.
        lines = io.StringIO(raw.decode("utf-8", "replace"), newline="\n").readlines()
        first = args["first_line"] - 1
        chosen = lines[first : first + args["max_lines"]]
        content, was_cut = cap("".join(chosen), self._max_text)
        is_part = was_cut or len(chosen) < len(lines)
        return answer | {"content": content, "total_lines": len(lines)} | ({"truncated": True} if is_part else {})

    async def write_file(self, args: dict[str, Any]) -> dict[str, Any]:
        await self._sandbox.write_file(args["path"], args["content"])
        return {"status": "success", "path": args["path"], "size": len(args["content"].encode())}

    async def list_files(self, args: dict[str, Any]) -> dict[str, Any]:
        entries: list[dict[str, Any]] = []
        waiting = [args["path"]]
        while waiting and len(entries) <= MAX_ENTRIES:
            directory = waiting.pop(0)
            for entry in await self._sandbox.list_dir(directory):
                path = entry.name if directory == "." else f"{directory.rstrip('/')}/{entry.name}"
                entries.append({"path": path, "kind": _kind(entry), "size": entry.size})
                if entry.is_dir and args["recursive"]:
                    waiting.append(path)
        answer = {"status": "success", "path": args["path"], "entries": entries[:MAX_ENTRIES]}
        return answer | ({"truncated": True} if len(entries) > MAX_ENTRIES else {})

    async def apply_patch(self, args: dict[str, Any]) -> dict[str, Any]:
        changes = await self._sandbox.apply_patch(args["patch"])
        return {"status": "success", "changes": [{"path": item.path, "kind": item.kind} for item in changes]}

    async def expose_port(self, args: dict[str, Any]) -> dict[str, Any]:
        async with self._exposing:
            port = await self._expose(args["port"])
        plain = {"url": port.url, "host": port.host, "port": port.port, "guest_port": port.guest_port}
        return {"status": "success"} | plain

    async def _expose(self, number: int) -> AsyncExposedPort:
        port = self._ports.get(number)
        if port is None:
            if len(self._ports) >= MAX_PORTS:
                taken = ", ".join(map(str, self._ports))
                raise InvalidRequest(f"{MAX_PORTS} ports are exposed already: {taken}", field="port", hint="use those")
            port = self._ports[number] = await self._sandbox.expose(number)
        return port


def _callbacks(on_output: OnOutput | None) -> dict[str, Any]:
    if on_output is None:
        return {}
    return {"on_stdout": lambda text: on_output("stdout", text), "on_stderr": lambda text: on_output("stderr", text)}


def _kind(entry: DirEntry) -> str:
    return "directory" if entry.is_dir else "file" if entry.is_file else "other"
