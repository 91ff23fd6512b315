"""E2B's processes: started, streamed, fed, signalled. Each goes on when its client goes."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from warmcell.core.errors import ExecutionTimeout, SandboxError
from warmcell.interfaces.serve.e2b.box import HOME, Box, FileError
from warmcell.interfaces.serve.e2b.connect import LastMessages, RpcError
from warmcell.interfaces.serve.v1.processes import written
from warmcell.sandbox.processes import AsyncProcess, PtySize

KEEPALIVE_SECONDS = 30.0
#: Where a process is to begin in a directory that only the guest knows.
_THERE = 'cd -- "$1" && shift && exec "$@"'
Message = Mapping[str, Any]


async def start(box: Box, asked: dict[str, Any], seconds: float | None) -> AsyncIterator[list[Message]]:
    config = _object(asked, "process")
    argv = [_text(config, "cmd"), *(str(word) for word in config.get("args") or [])]
    cwd = await _directory(box, str(config.get("cwd") or HOME))
    if cwd != HOME and not cwd.startswith(f"{HOME}/"):
        argv, cwd = ["/bin/sh", "-c", _THERE, "sh", cwd, *argv], HOME
    size = (asked.get("pty") or {}).get("size") if isinstance(asked.get("pty"), dict) else None
    turn = await box.starts.turn(box.held.tenant_id)
    try:
        process = await box.held.sandbox.spawn(
            argv,
            cwd=cwd,
            env={str(key): str(value) for key, value in (config.get("envs") or {}).items()},
            pty=_pty_size(size) if "pty" in asked and asked["pty"] is not None else None,
            stdin=asked.get("stdin", True) is not False,
            timeout=seconds,
        )
    except BaseException:
        turn.end()
        raise
    finally:
        box.on_first_start()
    turn.end_soon()
    tag = asked.get("tag")
    box.started[process.pid] = (config, str(tag) if tag is not None else None, process)
    return _events(box, process, "pty" if asked.get("pty") else None, turn.end)


async def attach(box: Box, asked: dict[str, Any]) -> AsyncIterator[list[Message]]:
    process, is_terminal = _found(box, asked)
    return _events(box, process, "pty" if is_terminal else None)


async def _events(
    box: Box, process: AsyncProcess, channel: str | None, on_end: Callable[[], None] = lambda: None
) -> AsyncIterator[list[Message]]:
    """What has come since the last, together."""
    if channel:
        box.extras.setdefault("terminals", set()).add(process.pid)
    with process.follow() as following:
        yield [{"event": {"start": {"pid": process.pid}}}]
        is_last = False
        while not is_last:
            events, is_last = await following.take(KEEPALIVE_SECONDS)
            told: list[Message] = [_data(channel or event.stream, event.data) for event in events]
            if not is_last:
                yield told or [{"event": {"keepalive": {}}}]
        on_end()
        try:
            end = {"event": {"end": _end(process)}}
        except RpcError:
            yield told  # what it wrote until then
            raise
        yield LastMessages([*told, end])


def _data(channel: str, data: bytes) -> Message:
    return {"event": {"data": {channel: b64encode(data).decode()}}}


def _end(process: AsyncProcess) -> dict[str, Any]:
    try:
        result = process.result()
    except ExecutionTimeout as error:
        raise RpcError("deadline_exceeded", error.message) from None
    except SandboxError as error:
        raise RpcError("unavailable", error.message) from None
    if result.signal is not None:
        said = f"signal: {_signal_name(result.signal)}"
        return {"exitCode": -1, "exited": False, "status": said, "error": said}
    said = f"exit status {result.exit_code}"
    ended: dict[str, Any] = {"exitCode": result.exit_code, "exited": True, "status": said}
    return ended | ({"error": said} if result.exit_code else {})


def _signal_name(number: int) -> str:
    return {9: "killed", 15: "terminated", 2: "interrupt", 11: "segmentation fault"}.get(number, str(number))


async def listed(box: Box, asked: dict[str, Any]) -> Message:
    rows = ((pid, config, tag) for pid, config, tag in box.running())
    return {"processes": [{"config": config, "pid": pid} | ({"tag": tag} if tag else {}) for pid, config, tag in rows]}


async def update(box: Box, asked: dict[str, Any]) -> Message:
    process, _ = _found(box, asked)
    size = _pty_size((asked.get("pty") or {}).get("size"))
    await process.resize(size.cols, size.rows)
    return {}


async def send_input(box: Box, asked: dict[str, Any]) -> Message:
    process, _ = _found(box, asked)
    given = _object(asked, "input")
    data = given.get("stdin") or given.get("pty") or ""
    try:
        plain = b64decode(str(data))
    except ValueError:
        raise RpcError("invalid_argument", "the input is not base64") from None
    await written(box.held, process, plain, is_patient=True)
    return {}


async def stream_input(box: Box, messages: list[dict[str, Any]]) -> Message:
    chosen: dict[str, Any] = {}
    for message in messages:
        if "start" in message:
            chosen = _object(message, "start")
        elif "data" in message:
            await send_input(box, {**chosen, **_object(message, "data")})
    return {}


async def send_signal(box: Box, asked: dict[str, Any]) -> Message:
    process, _ = _found(box, asked)
    if asked.get("signal") in ("SIGNAL_SIGKILL", 9):
        await process.kill()
    elif asked.get("signal") in ("SIGNAL_SIGTERM", 15):
        await process.signal(15)
    else:
        raise RpcError("invalid_argument", "there is no such signal")
    return {}


async def close_stdin(box: Box, asked: dict[str, Any]) -> Message:
    process, _ = _found(box, asked)
    await process.close_stdin()
    return {}


def _found(box: Box, asked: dict[str, Any]) -> tuple[AsyncProcess, bool]:
    wanted = _object(asked, "process")
    for pid, _, tag in box.running():
        if wanted.get("pid") == pid or (wanted.get("tag") is not None and wanted.get("tag") == tag):
            return box.started[pid][2], pid in box.extras.get("terminals", ())
    raise RpcError("not_found", "there is no such process")


async def _directory(box: Box, path: str) -> str:
    """An absolute one that is there, as the guest sees it. The home is a mount, which no guest can take away."""
    if path == HOME:
        return path
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


def _object(asked: dict[str, Any], name: str) -> dict[str, Any]:
    found = asked.get(name)
    if not isinstance(found, dict):
        raise RpcError("invalid_argument", f"{name} is needed")
    return found


def _text(asked: dict[str, Any], name: str) -> str:
    found = asked.get(name)
    if not isinstance(found, str) or not found:
        raise RpcError("invalid_argument", f"{name} is needed")
    return found
