"""ContainerCage: the live cage of one container, and what is started and asked in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import EnforcerFailed, InvalidRequest, SandboxError
from warmcell.interfaces.docker.messages import DockerError
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.interface import PtySize
from warmcell.sandbox.local.operations import Operations
from warmcell.sandbox.local.process import LocalProcess, RingFactory, make_ring, start_program
from warmcell.sessions.processes import ProcessTable
from warmcell.sessions.streams import Ring
from warmcell.workspace.untrusted_files import load_object

if TYPE_CHECKING:
    from warmcell.backends.process.backend import ProcessBackend
    from warmcell.backends.process.live import LiveCage

#: How long a request in the cage may take, and how long an archive may make no progress.
_REQUEST_SECONDS, _STALL_SECONDS = 30.0, 60.0
_SMALL_RING = 1 << 16
#: The ring's size for programs whose output is always followed.
make_small_ring = partial(Ring, _SMALL_RING)
_STATUS = {
    "ENOENT": 404,
    "EEXIST": 409,
    "EACCES": 403,
    "EROFS": 403,
    **dict.fromkeys(("ENOTDIR", "EISDIR", "ENOTEMPTY", "ENAMETOOLONG", "EINVAL", "EPERM", "ELOOP"), 400),
}


class ContainerCage:
    """The cage is made when it is first needed, and kept until the container is removed: the files are in it."""

    def __init__(self, backend: ProcessBackend, env: Mapping[str, str]) -> None:
        self._backend, self._env = backend, env
        self._cage: LiveCage | None = None
        self._lock, self._table = asyncio.Lock(), ProcessTable()
        self.operations = Operations()

    async def open(self) -> LiveCage:
        """Return the cage, making it if necessary. An ended cage is not replaced, because its files are gone."""
        self.operations.check_open()
        async with self._lock:
            if self._cage is None:
                cage = self._cage = await self._backend.live_cage(env=self._env)
                loop, table = cage.loop, self._table
                cage.ended.add_done_callback(lambda _: loop.call(table.forget_pipes))
            if not self._cage.is_alive:
                reason = self._cage.ended.result().reason if self._cage.ended.done() else "it was closed"
                raise DockerError(409, f"the container's cage has ended, and its files with it: {reason}")
            return self._cage

    @property
    def current(self) -> LiveCage | None:
        """The cage if it is alive. May be called in any thread."""
        cage = self._cage
        return cage if cage is not None and cage.is_alive else None

    async def start(
        self,
        argv: Sequence[str],
        cwd: str,
        *,
        env: Mapping[str, str] | None = None,
        pty: PtySize | None = None,
        stdin: bool = False,
        ring: RingFactory = make_ring,
        worker: str | None = None,
        joins_output: bool = False,
    ) -> LocalProcess:
        """Start a program. Its output waits in the pipes until it is followed."""
        cage = await self.open()
        try:
            process = await start_program(cage, argv, cwd, "", env, pty, stdin, ring, None, worker, joins_output)
        except OSError as error:
            raise host_failure(error, "start the process") from error
        self._table.add(process)
        process.begin(None, is_followed=True)
        return LocalProcess(process, self.operations)

    # ---- requests that a worker of ours carries out in the cage ----

    async def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """Carry out a request in the cage; return the answer, which the guest can forge."""
        async with self._start_request(op, fields) as process:
            await process.close_stdin()
            return await self._answer(process)

    async def read_archive(self, path: str, name: str) -> AsyncIterator[bytes]:
        """Yield the file or directory as a tar."""
        errors = bytearray()
        async with self._start_request("get", {"path": path, "name": name}) as process:
            await process.close_stdin()
            with process.follow() as follower:
                is_last = False
                while not is_last:
                    events, is_last = await follower.take(_STALL_SECONDS)
                    if not events and not is_last:
                        raise EnforcerFailed("native", f"timed out reading {path!r}: no data for {_STALL_SECONDS:g} s")
                    for event in events:
                        if event.stream == "stdout":
                            yield event.data
                        elif len(errors) < _SMALL_RING:
                            errors += event.data
            if process.info.exit_code != 0:
                raise EnforcerFailed("native", f"reading {path!r} failed: {_message_of(bytes(errors))}")

    async def write_archive(self, path: str, chunks: AsyncIterator[bytes], *, keeps_kinds: bool) -> None:
        """Unpack a tar below a directory. What was unpacked before an error stays, as in Docker."""
        async with self._start_request("put", {"path": path, "keeps_kinds": keeps_kinds}) as process:
            async for chunk in chunks:
                try:
                    async with asyncio.timeout(_STALL_SECONDS):
                        await process.write(chunk)
                except SandboxError:
                    break  # it has ended, and its answer says why
            await process.close_stdin()
            await self._answer(process)

    @asynccontextmanager
    async def _start_request(self, op: str, fields: Mapping[str, Any]) -> AsyncIterator[LocalProcess]:
        process = await self.start((), "/", stdin=True, ring=make_small_ring, worker="container_request")
        try:
            with suppress(InvalidRequest):  # it was killed: `_answer` says so
                await process.write(json.dumps({"op": op, **fields}).encode() + b"\n")
            yield process
        finally:
            process.kill_soon()

    async def _answer(self, process: LocalProcess) -> dict[str, Any]:
        output = bytearray()
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                async for event in process.output():
                    output += event.data if event.stream == "stdout" and len(output) < 2 * _SMALL_RING else b""
        except TimeoutError:
            raise DockerError(500, f"the container did not answer within {_REQUEST_SECONDS:g} s") from None
        answer = load_object(bytes(output)) or {}
        if "errno" in answer:
            raise DockerError(_STATUS.get(str(answer["errno"]), 500), _message_of(bytes(output)))
        if process.info.exit_code != 0:  # killed, as are all processes when the main program has ended
            raise DockerError(409, _message_of(b""))
        return answer

    async def kill_all(self) -> None:
        """Kill every process in the cage. If that fails, end the cage."""
        if self.current is None:
            return
        try:
            await self.request("kill")
        except (DockerError, SandboxError):  # also without room for the helper, which a guest may have taken
            cage = self.current
            if cage is not None:
                cage.end_soon("its processes could not be killed")

    async def close(self) -> None:
        """End everything and release the image."""
        await self.operations.close()
        async with self._lock:
            with suppress(SandboxError):
                await in_thread(self._backend.close)
                self._table.clear()


def _message_of(output: bytes) -> str:
    said = (load_object(output) or {}).get("message")
    return str(said or "the container's helper was killed, as at the container's end")[:500]
