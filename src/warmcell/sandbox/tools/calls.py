"""What each tool does. Arguments have been checked; exceptions pass through to `ToolCalls`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from warmcell.core.door_text import cap
from warmcell.core.errors import InvalidRequest
from warmcell.core.types import ExecResult
from warmcell.sandbox.ports import AsyncExposedPort
from warmcell.sandbox.tools.answers import failure, partial_result, success
from warmcell.sandbox.tools.interface import ToolSandbox
from warmcell.sandbox.tools.interpreters import Interpreters, answer_for, as_run
from warmcell.sandbox.tools.saved_output import SavedOutput
from warmcell.workspace.files import DirEntry

MAX_ENTRIES = 1000
MAX_PORTS = 16
MAX_FILE_BYTES = 16 * 1024 * 1024
#: Gets "stdout" or "stderr" and text as it arrives; may return an awaitable.
OnOutput = Callable[[str, str], object]


class Calls:
    """The tools of one sandbox: one method each, with the name of the tool."""

    def __init__(self, sandbox: ToolSandbox, max_text: int, stateful_languages: Sequence[str] = ()) -> None:
        self._sandbox = sandbox
        self._max_text = max_text
        self._saved = SavedOutput(sandbox, max_text)
        self._interpreters = Interpreters(sandbox)
        self._stateful_languages = tuple(stateful_languages)
        self._ports: dict[int, AsyncExposedPort] = {}

    async def run_code(self, args: dict[str, Any], on_output: OnOutput | None = None) -> dict[str, Any]:
        if args["language"] in self._stateful_languages and args["stdin"] is None:
            return await self._run_cell(args, on_output)
        run = self._sandbox.run(
            args["code"],
            args["language"],
            stdin=args["stdin"],
            timeout=float(args["timeout_secs"]),
            **_callbacks(on_output),
        )
        return await self._answer(run)

    async def _run_cell(self, args: dict[str, Any], on_output: OnOutput | None) -> dict[str, Any]:
        run = self._interpreters.run(
            args["language"],
            args["code"],
            float(args["timeout_secs"]),
            restart=bool(args["restart"]),
            **_callbacks(on_output),
        )
        try:
            cell = await run
        except Exception as error:
            return failure(error, self._max_text) | await self._saved.save(partial_result(error))
        answer = await answer_for(cell, self._sandbox, self._max_text)
        return answer | await self._saved.save(as_run(cell))

    async def run_command(self, args: dict[str, Any], on_output: OnOutput | None = None) -> dict[str, Any]:
        run = self._sandbox.sh(
            args["command"],
            cwd=args["cwd"],
            stdin=args["stdin"],
            timeout=float(args["timeout_secs"]),
            **_callbacks(on_output),
        )
        return await self._answer(run)

    async def _answer(self, run: Awaitable[ExecResult]) -> dict[str, Any]:
        try:
            result = await run
        except Exception as error:
            return failure(error, self._max_text) | await self._saved.save(partial_result(error))
        return success(result, self._max_text) | await self._saved.save(result)

    async def read_file(self, args: dict[str, Any]) -> dict[str, Any]:
        raw = await self._sandbox.read_file(args["path"], max_bytes=MAX_FILE_BYTES)
        answer: dict[str, Any] = {"status": "success", "path": args["path"], "size": len(raw)}
        if b"\0" in raw[:8192]:
            return answer | {"is_binary": True, "content": ""}
        lines = raw.decode("utf-8", "replace").splitlines(keepends=True)
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
        port = self._ports.get(args["port"])
        if port is None:
            if len(self._ports) >= MAX_PORTS:
                taken = ", ".join(map(str, self._ports))
                raise InvalidRequest(f"{MAX_PORTS} ports are exposed already: {taken}", field="port", hint="use those")
            port = self._ports[args["port"]] = await self._sandbox.expose(args["port"])
        plain = {"url": port.url, "host": port.host, "port": port.port, "guest_port": port.guest_port}
        return {"status": "success"} | plain


def _callbacks(on_output: OnOutput | None) -> dict[str, Any]:
    if on_output is None:
        return {}
    return {
        "on_stdout": lambda text: on_output("stdout", text),
        "on_stderr": lambda text: on_output("stderr", text),
    }


def _kind(entry: DirEntry) -> str:
    return "directory" if entry.is_dir else "file" if entry.is_file else "other"
