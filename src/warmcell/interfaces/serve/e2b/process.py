"""E2B's process calls: start, stream, write to stdin, signal. A process outlives the connection of its client."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from warmcell.core.errors import ExecutionTimeout, MemoryExceeded, SandboxError
from warmcell.core.light import on_error
from warmcell.interfaces.serve.e2b.box import HOME, ROOT_HOME, Box, Command
from warmcell.interfaces.serve.e2b.connect import LastMessages, RpcError
from warmcell.interfaces.serve.e2b.guest_files import FileError
from warmcell.interfaces.serve.sandbox_registry import write_to_process
from warmcell.sandbox.processes import AsyncProcess, PtySize

KEEPALIVE_SECONDS = 30.0
#: A client that disconnects leaves at most this much unread stdin in the server's memory.
_INPUT_CHUNK = 64 * 1024
#: What `List` returns is kept while a program runs: the limit for all programs of a sandbox, and the longest tag.
_MAX_CONFIG_BYTES, _MAX_TAG = 8 << 20, 1000
_WORD_OVERHEAD = 64
#: Starts a program in a directory outside of the home, which only the guest can resolve.
_CD_AND_EXEC = 'cd -- "$1" && shift && exec "$@"'
_SIGNALS = {2: "interrupt", 9: "killed", 11: "segmentation fault", 15: "terminated"}
Message = Mapping[str, Any]


async def start(box: Box, fields: dict[str, Any], seconds: float | None) -> AsyncIterator[list[Message]]:
    config, tag = _read_config(_object(fields, "process")), fields.get("tag")
    tag = None if tag is None else str(tag)
    if tag is not None and len(tag) > _MAX_TAG:
        raise RpcError("invalid_argument", f"tag: has more than {_MAX_TAG} characters")
    argv = [config["cmd"], *config["args"]]
    cwd = await _directory(box, config.get("cwd") or box.directory)
    if cwd != HOME and not cwd.startswith(f"{HOME}/"):
        argv, cwd = ["/bin/sh", "-c", _CD_AND_EXEC, "sh", cwd, *argv], HOME
    size = (fields.get("pty") or {}).get("size") if isinstance(fields.get("pty"), dict) else None
    slot = await box.starts.run_slot(box.entry.tenant_id)

    def spawn() -> Awaitable[AsyncProcess]:
        _check_room(box, config)
        pty = None if fields.get("pty") is None else _pty_size(size)
        stdin = fields.get("stdin", True) is not False
        env = config.get("envs") or {}
        return box.entry.sandbox.spawn(argv, cwd=cwd, env=env, pty=pty, stdin=stdin, timeout=seconds)

    try:
        with on_error(slot.end):
            process = await box.service.start_process(box.entry.tenant, spawn)
    finally:
        box.on_first_start()
    slot.end_soon()
    command = Command(config, tag, process, bool(fields.get("pty")))
    box.add_command(command)
    return _events(command, slot.end)


def _read_config(fields: dict[str, Any]) -> dict[str, Any]:
    """Read the command line as strings. It is kept for `List`, so unknown fields, of any size, are left out."""
    config: dict[str, Any] = {"cmd": _text(fields, "cmd"), "args": [str(word) for word in fields.get("args") or []]}
    if "envs" in fields:
        config["envs"] = {str(key): str(value) for key, value in (fields["envs"] or {}).items()}
    return config | ({"cwd": str(fields["cwd"] or "")} if "cwd" in fields else {})


def _check_room(box: Box, config: dict[str, Any]) -> None:
    if sum(map(_size_of, (config, *(command.config for command in box.running_commands())))) > _MAX_CONFIG_BYTES:
        reason = f"the command lines of this sandbox's programs take more than {_MAX_CONFIG_BYTES >> 20} MiB together"
        raise RpcError("resource_exhausted", f"{reason}; end some, or pass large data as files")


def _size_of(config: dict[str, Any]) -> int:
    env = config.get("envs") or {}
    words = (config["cmd"], *config["args"], *env, *env.values(), config.get("cwd") or "")
    return sum(_WORD_OVERHEAD + len(word) for word in words)


async def attach(box: Box, fields: dict[str, Any]) -> AsyncIterator[list[Message]]:
    return _events(_find_command(box, fields))


async def _events(command: Command, on_end: Callable[[], None] = lambda: None) -> AsyncIterator[list[Message]]:
    """Yield messages in batches: everything that arrived since the last batch."""
    process = command.process
    with process.local.follow() as follower:
        yield [{"event": {"start": {"pid": process.pid}}}]
        is_last = False
        while not is_last:
            events, is_last = await follower.take(KEEPALIVE_SECONDS)
            outputs = [("pty" if command.is_terminal else event.stream, event.data) for event in events]
            messages: list[Message] = [{"event": {"data": {to: b64encode(data).decode()}}} for to, data in outputs]
            if not is_last:
                yield messages or [{"event": {"keepalive": {}}}]
        on_end()
        try:
            end = {"event": {"end": _end(process)}}
        except RpcError:
            yield messages
            raise
        yield LastMessages([*messages, end])


def _end(process: AsyncProcess) -> dict[str, Any]:
    try:
        result = process.local.result()
    except ExecutionTimeout as error:
        raise RpcError("deadline_exceeded", error.message) from None
    except MemoryExceeded as error:  # not "unavailable", which is the end of the sandbox: its next command runs
        status = f"signal: {_SIGNALS[9]}"
        return {"exitCode": -1, "exited": False, "status": status, "error": f"{status}: {error.message}"}
    except SandboxError as error:
        raise RpcError("unavailable", error.message) from None
    if result.signal is not None:
        status = f"signal: {_SIGNALS.get(result.signal, str(result.signal))}"
        return {"exitCode": -1, "exited": False, "status": status, "error": status}
    status = f"exit status {result.exit_code}"
    end: dict[str, Any] = {"exitCode": result.exit_code, "exited": True, "status": status}
    return end | ({"error": status} if result.exit_code else {})


async def list_commands(box: Box, fields: dict[str, Any]) -> Message:
    rows = [(command, {"tag": command.tag} if command.tag else {}) for command in box.running_commands()]
    return {"processes": [{"config": command.config, "pid": command.process.pid, **tag} for command, tag in rows]}


async def update(box: Box, fields: dict[str, Any]) -> None:
    process = _find_command(box, fields).process
    size = _pty_size((fields.get("pty") or {}).get("size"))
    await process.resize(size.cols, size.rows)


async def send_input(box: Box, fields: dict[str, Any]) -> None:
    command = _find_command(box, fields)
    sent = _object(fields, "input")
    try:
        data = b64decode(str(sent.get("stdin") or sent.get("pty") or ""))
    except ValueError:
        raise RpcError("invalid_argument", "the input is not base64") from None
    async with command.input_turn:
        for offset in range(0, len(data) or 1, _INPUT_CHUNK):
            chunk = data[offset : offset + _INPUT_CHUNK]
            await write_to_process(box.entry, command.process, chunk, wait=True)


async def stream_input(box: Box, messages: list[dict[str, Any]]) -> Message:
    chosen: dict[str, Any] = {}
    for message in messages:
        if "start" in message:
            chosen = _object(message, "start")
        elif "data" in message:
            await send_input(box, {**chosen, **_object(message, "data")})
    return {}


async def send_signal(box: Box, fields: dict[str, Any]) -> None:
    process = _find_command(box, fields).process
    if fields.get("signal") in ("SIGNAL_SIGKILL", 9):
        await process.kill()
    elif fields.get("signal") in ("SIGNAL_SIGTERM", 15):
        await process.signal(15)
    else:
        raise RpcError("invalid_argument", "unknown signal: use SIGNAL_SIGKILL or SIGNAL_SIGTERM")


async def close_stdin(box: Box, fields: dict[str, Any]) -> None:
    await _find_command(box, fields).process.close_stdin()


def _find_command(box: Box, fields: dict[str, Any]) -> Command:
    wanted = _object(fields, "process")
    for command in box.running_commands():
        if wanted.get("pid") == command.process.pid or (command.tag and wanted.get("tag") == command.tag):
            return command
    raise RpcError("not_found", "process not found")


async def _directory(box: Box, path: str) -> str:
    """The absolute path of an existing directory, as the guest sees it. The home always exists: it is a mount."""
    if path in (HOME, ROOT_HOME):
        return HOME
    try:
        found = (await box.files.ask("stat", path=path))["entry"]
    except FileError as error:
        raise RpcError("invalid_argument", f"cwd '{path}' does not exist") from error
    if found.get("type") != "FILE_TYPE_DIRECTORY":
        raise RpcError("invalid_argument", f"cwd '{path}' is not a directory")
    return os.path.normpath(str(found["path"]))


def _pty_size(size: Any) -> PtySize:
    size = size if isinstance(size, dict) else {}
    return PtySize(int(size.get("cols") or 80), int(size.get("rows") or 24))


def _object(fields: dict[str, Any], name: str) -> dict[str, Any]:
    found = fields.get(name)
    if not isinstance(found, dict):
        raise RpcError("invalid_argument", f"{name} is required")
    return found


def _text(fields: dict[str, Any], name: str) -> str:
    found = fields.get(name)
    if not isinstance(found, str) or not found:
        raise RpcError("invalid_argument", f"{name} is required")
    return found
