"""What E2B's clients call a sandbox: one of ours, with a home, secrets of its own, and files as the guest sees them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import signal
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from importlib.resources import files as package_files
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.e2b.connect import RpcError
from warmcell.interfaces.serve.e2b.starts import Starts
from warmcell.interfaces.serve.held_sandboxes import Held
from warmcell.policy.places import USER_HOME
from warmcell.sandbox.processes import AsyncProcess

HOME = USER_HOME
USERS = ("user", "root", "")
CHUNK = 192 * 1024
MAX_LINE = 2 << 20
FILE_SECONDS = 30.0
_CODES = {
    "ENOENT": "not_found",
    "ENOTDIR": "invalid_argument",
    "EEXIST": "already_exists",
    "EACCES": "permission_denied",
    "EPERM": "permission_denied",
    "ENOSPC": "resource_exhausted",
    "EDQUOT": "resource_exhausted",
}


class FileError(RpcError):
    """What the guest's side said about a file."""

    def __init__(self, errno: str, message: str) -> None:
        super().__init__(_CODES.get(errno, "invalid_argument"), message)
        self.errno = errno


class GuestFiles:
    """A program in the cage that does the work (`guest/file_server.py`), started when it is first needed.

    One request at a time, lines of bounded length. A guest may kill or forge it: it then harms its own sandbox.
    """

    def __init__(self, held: Held) -> None:
        self._held = held
        self._turn = asyncio.Lock()
        self._process: AsyncProcess | None = None
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def ask(self, op: str, **asked: Any) -> dict[str, Any]:
        async with self._turn:
            try:
                async with asyncio.timeout(FILE_SECONDS):
                    found = await self._answer(json.dumps({"op": op, **asked}).encode() + b"\n")
            except TimeoutError:
                await self.close()
                raise RpcError("deadline_exceeded", f"no answer about files within {FILE_SECONDS:g} s") from None
        if isinstance(found.get("errno"), str):
            raise FileError(found["errno"], str(found.get("message"))[:500])
        return found

    async def _answer(self, line: bytes) -> dict[str, Any]:
        if self._process is None or not self._process.is_running:
            await self._start()
        assert self._process is not None
        await self._process.write(line)
        try:
            found = json.loads(await self._lines.get() or b"null")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            await self.close()
            raise RpcError("internal", "what looks after files in the sandbox has ended")
        return found

    async def _start(self) -> None:
        await self.close()
        source = package_files("warmcell.guest").joinpath("file_server.py").read_text()
        self._process = await self._held.sandbox.spawn(["python3", "-I", "-S", "-c", source], cwd=HOME)
        self._lines = asyncio.Queue()
        self._reading = asyncio.ensure_future(self._read(self._process, self._lines))

    async def _read(self, process: AsyncProcess, lines: asyncio.Queue[bytes | None]) -> None:
        """Each byte is looked at once, and what nobody asked for is the end: a guest decides what comes here."""
        kept = bytearray()
        with suppress(SandboxError):
            async for event in process.output():
                first, *more = event.data.split(b"\n", 2) if event.stream == "stdout" else [b""]
                kept += first
                if len(kept) > MAX_LINE or len(more) > 1 or (more and lines.qsize()):
                    break
                if more:
                    lines.put_nowait(bytes(kept))
                    kept = bytearray(more[0])
        lines.put_nowait(None)

    async def close(self) -> None:
        reading, self._reading = self._reading, None
        process, self._process = self._process, None
        if reading is not None:
            reading.cancel()
        if process is not None:
            with suppress(SandboxError):
                await process.kill()

    async def chunks(self, path: str) -> AsyncIterator[bytes]:
        offset = 0
        while chunk := b64decode((await self.ask("read", path=path, offset=offset))["data"]):
            offset += len(chunk)
            yield chunk

    async def write(self, path: str, data: bytes, metadata: dict[str, str]) -> dict[str, Any]:
        for offset in range(0, len(data) or 1, CHUNK):
            chunk = b64encode(data[offset : offset + CHUNK]).decode()
            await self.ask("write", path=path, offset=offset, data=chunk)
        return (await self.ask("finish", path=path, metadata=metadata))["entry"]  # type: ignore[no-any-return]


class Box:
    """Kept in `held.extras["e2b"]`."""

    def __init__(self, held: Held, asked: dict[str, Any], starts: Starts) -> None:
        self.starts = starts
        self.on_first_start: Callable[[], None] = _nothing
        self.held, self.template = held, str(asked.get("templateID") or "base")
        self.token, self.traffic_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.auto_pause = asked.get("autoPause") is True
        self.auto_resume = isinstance(asked.get("autoResume"), dict) and asked["autoResume"].get("enabled") is True
        self.is_paused = False
        self.files = GuestFiles(held)
        #: By pid: what was asked for, and the process.
        self.started: dict[int, tuple[dict[str, Any], str | None, AsyncProcess]] = {}
        self.watchers: dict[str, Any] = {}
        self.extras: dict[str, Any] = {}
        #: As its client asked for it; a fork is made in the same way.
        self.asked: Any = None

    def knows(self, token: str | None) -> bool:
        return hmac.compare_digest((token or "").encode(), self.token.encode())

    def signed(self, path: str, operation: str, user: str, expiration: str | None) -> str:
        """What a URL of ours is signed with; see the SDKs' own `get_signature`."""
        text = f"{path}:{operation}:{user}:{self.token}" + (f":{expiration}" if expiration else "")
        return "v1_" + b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")

    async def pause(self) -> None:
        """What was started stands still, and keeps its memory."""
        self.is_paused = True
        await self._signal_all(signal.SIGSTOP)

    async def resume(self) -> None:
        await self._signal_all(signal.SIGCONT)
        self.is_paused = False

    async def _signal_all(self, number: int) -> None:
        for _, _, process in list(self.started.values()):
            if process.is_running:
                await process.signal(number)

    def running(self) -> list[tuple[int, dict[str, Any], str | None]]:
        self.started = {pid: item for pid, item in self.started.items() if item[2].is_running}
        return [(pid, config, tag) for pid, (config, tag, _) in self.started.items()]


def _nothing() -> None:
    """Nobody waits for its first program."""


def box_of(held: Held | None) -> Box | None:
    return None if held is None else held.extras.get("e2b")


def rfc3339(seconds: float, nanoseconds: int = 0) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(int(seconds)))
    return f"{whole}.{nanoseconds or int(seconds % 1 * 10**9):09d}Z"
