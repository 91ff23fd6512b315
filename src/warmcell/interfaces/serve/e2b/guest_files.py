"""GuestFiles: the files of a sandbox as its guest sees them, through a program in the cage (`guest/file_server.py`)."""

from __future__ import annotations

import asyncio
import json
import secrets
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from importlib.resources import files as package_files
from itertools import count
from typing import Any, NamedTuple

from warmcell.core.errors import SandboxError
from warmcell.core.light import on_error
from warmcell.core.output_events import OutputEvent
from warmcell.interfaces.serve.e2b.connect import RpcError
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.policy.places import USER_HOME
from warmcell.sandbox.processes import AsyncProcess
from warmcell.workspace.untrusted_files import load_object

CHUNK = 192 * 1024
MAX_LINE = 2 << 20
#: How long a request may take, including its wait for earlier ones. A slower file service is killed.
FILE_SECONDS = 30.0
_EXITED = "the file service exited"
_CODES = {
    "ENOENT": "not_found",
    "ENOTDIR": "invalid_argument",
    "EEXIST": "already_exists",
    "EACCES": "permission_denied",
    "EPERM": "permission_denied",
    "ENOSPC": "resource_exhausted",
    "EDQUOT": "resource_exhausted",
    # Of the service: it was restarted in the middle of a transfer, or has too many.
    "ESTALE": "unavailable",
    "EBUSY": "unavailable",
}


class FileError(RpcError):
    """An operation on a file failed in the guest."""

    def __init__(self, errno: str, message: str) -> None:
        super().__init__(_CODES.get(errno, "invalid_argument"), message)
        self.errno = errno


class PendingRequest(NamedTuple):
    answer: asyncio.Future[dict[str, Any]]
    deadline: asyncio.TimerHandle


class FileService:
    """The client of one file service process.

    Each answer has the id of its request. When a caller is cancelled, its request stays pending, and its answer is
    dropped. A guest controls what the service writes: anything but the answer to a pending request ends the service.
    """

    def __init__(self, process: AsyncProcess) -> None:
        self._process, self._ids = process, count(1)
        self._pending: dict[int, PendingRequest] = {}
        self._writing: asyncio.Future[None] | None = None
        self._reading = asyncio.ensure_future(self._read())

    @property
    def is_running(self) -> bool:
        return self._process.is_running and not self._reading.done()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def request(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self._writing is not None:  # an abandoned request may be half written
            await asyncio.wait([self._writing])
        if not self.is_running:
            raise RpcError("internal", _EXITED)
        loop, identity = asyncio.get_running_loop(), next(self._ids)
        # The deadline also holds for an abandoned request, so a stopped service never outlives it.
        pending = PendingRequest(loop.create_future(), loop.call_later(FILE_SECONDS, self.end))
        self._pending[identity] = pending
        self._writing = asyncio.ensure_future(self._write(json.dumps({"id": identity, **fields}).encode() + b"\n"))
        return await pending.answer

    async def _write(self, line: bytes) -> None:
        try:
            await self._process.write(line)
        except SandboxError:
            self.end()

    async def _read(self) -> None:
        try:
            async with aclosing(self._process.output()) as events:
                await self._accept_lines(events)
        except SandboxError:
            return  # the cage ended
        finally:
            self.end()

    async def _accept_lines(self, events: AsyncIterator[OutputEvent]) -> None:
        """Accept answers; return at the first line that is not one. Looks at each byte once."""
        line = bytearray()
        async for event in events:
            if event.stream != "stdout":
                continue
            *ends, rest = event.data.split(b"\n")
            for end in ends:
                if not self._accept(bytes(line + end)):
                    return
                line.clear()
            line += rest
            if len(line) > MAX_LINE:
                return

    def _accept(self, line: bytes) -> bool:
        """Whether this was the answer to a pending request."""
        answer = load_object(line) if len(line) <= MAX_LINE else None
        if answer is None:
            return False
        identity = answer.pop("id", None)
        pending = self._pending.pop(identity, None) if isinstance(identity, int) else None
        if pending is None:
            return False
        pending.deadline.cancel()
        if not pending.answer.done():
            pending.answer.set_result(answer)
        return True

    def end(self) -> None:
        """Kill the process and fail all requests, without waiting."""
        self._reading.cancel()
        pending, self._pending = self._pending, {}
        for request in pending.values():
            request.deadline.cancel()
            if not request.answer.done():
                request.answer.set_exception(RpcError("internal", _EXITED))
        with suppress(SandboxError):  # the sandbox was destroyed
            self._process.local.kill_soon()


def _service_source() -> str:
    """Both files of the service as one program: the guest sees no directory of ours to import the second from."""
    files = package_files("warmcell.guest")
    watches = files.joinpath("file_watches.py").read_text()
    module = "import sys, types\nmade = sys.modules['file_watches'] = types.ModuleType('file_watches')\n"
    return f"{module}exec({watches!r}, vars(made))\n{files.joinpath('file_server.py').read_text()}"


class GuestFiles:
    """Starts the file service when it is first needed. One request at a time. A guest that kills or forges the service
    harms only its own sandbox.
    """

    def __init__(self, entry: SandboxEntry, search_path: Callable[[], str]) -> None:
        """`search_path`: where to look for its interpreter. PATH of the guest may lead to a program of the guest."""
        self._entry, self._search_path, self._turn = entry, search_path, asyncio.Lock()
        self._service: FileService | None = None
        #: Requests that free what an abandoned call left in the service.
        self._freeing: set[asyncio.Task[None]] = set()

    @property
    def pids(self) -> list[int]:
        """The file service's pid in the guest, while it runs. It is not paused: watchers use it meanwhile."""
        return [self._service.pid] if self._service is not None and self._service.is_running else []

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        service = None
        try:
            async with asyncio.timeout(FILE_SECONDS), self._turn:
                service = await self._running_service()
                answer = await service.request({"op": op, **fields})
        except TimeoutError:
            if service is not None:
                service.end()
            raise RpcError("deadline_exceeded", f"the file service did not answer within {FILE_SECONDS:g} s") from None
        if isinstance(answer.get("errno"), str):
            raise FileError(answer["errno"], str(answer.get("message"))[:500])
        return answer

    async def _running_service(self) -> FileService:
        if self._service is None or not self._service.is_running:
            self.close()
            env = {"PATH": self._search_path()}
            argv = ["python3", "-I", "-S", "-c", _service_source()]
            self._service = FileService(await self._entry.sandbox.spawn(argv, cwd=USER_HOME, env=env))
        return self._service

    def close(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.end()

    async def chunks(self, path: str) -> AsyncIterator[bytes]:
        """Yield the content of one version of the file: the service keeps it open between requests."""
        offset, token, has_more = 0, secrets.token_hex(8), True
        with on_error(lambda: self.release_later("discard", token=token)):
            while has_more:
                answer = await self.ask("read", path=path, offset=offset, token=token)
                chunk, has_more = b64decode(answer["data"]), answer["more"] is True
                offset += len(chunk)
                yield chunk

    async def write(self, path: str, data: bytes, metadata: dict[str, str]) -> dict[str, Any]:
        """Replace the file when all of `data` has arrived in the guest."""
        token = secrets.token_hex(8)
        with on_error(lambda: self.release_later("discard", token=token)):
            for offset in range(0, len(data) or 1, CHUNK):
                chunk = b64encode(data[offset : offset + CHUNK]).decode()
                await self.ask("write", path=path, offset=offset, data=chunk, token=token)
            return (await self.ask("finish", token=token, metadata=metadata))["entry"]  # type: ignore[no-any-return]

    def release_later(self, op: str, **fields: Any) -> None:
        """Send a request that frees something, without waiting: the caller may have been cancelled."""

        async def release() -> None:
            with suppress(RpcError, SandboxError):  # the service has ended, and its open files with it
                await self.ask(op, **fields)

        if self._service is not None and self._service.is_running:
            task = asyncio.ensure_future(release())
            self._freeing.add(task)
            task.add_done_callback(self._freeing.discard)
