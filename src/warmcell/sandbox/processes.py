"""AsyncProcess and Process: a program that `spawn` started and that outlives the call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future
from contextlib import aclosing

from warmcell.backends.output_callbacks import OnText, Texts
from warmcell.core.errors import InvalidRequest
from warmcell.core.output_events import OutputEvent
from warmcell.core.request_checks import check_wait
from warmcell.core.types import ExecResult
from warmcell.lifetime.cancellable import CancellableIterator
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.portal import CallbackQueue, portal
from warmcell.sandbox.interface import ProcessDriver, ProcessInfo, PtySize
from warmcell.sandbox.local.process import LocalProcess
from warmcell.sandbox.signatures import blocking

__all__ = ["AsyncProcess", "Process", "ProcessInfo", "PtySize"]


class AsyncProcess:
    """A program in the live cage. It ends with the sandbox at the latest."""

    def __init__(self, driver: ProcessDriver) -> None:
        self._driver = driver
        #: The callbacks at work: `wait` waits for them too, and raises what they raised.
        self._callbacks: asyncio.Future[None] | None = None

    @property
    def pid(self) -> int:
        """The process id, as the guest sees it."""
        return self._driver.info.pid

    @property
    def is_running(self) -> bool:
        """On a server: as of its last answer; see `refresh`."""
        return self._driver.info.is_running

    @property
    def info(self) -> ProcessInfo:
        return self._driver.info

    @property
    def local(self) -> LocalProcess:
        """Its driver, for code that needs the live cage of this host."""
        if not isinstance(self._driver, LocalProcess):
            raise InvalidRequest("the process runs on a server", hint="use a sandbox on this host")
        return self._driver

    async def refresh(self) -> ProcessInfo:
        """Its present state; asks the server if it runs on one."""
        return await self._driver.refresh()

    async def write(self, data: str | bytes) -> None:
        """Writes to its stdin; returns when the program's pipe has taken all of it."""
        if not isinstance(data, str | bytes):
            raise InvalidRequest(f"must be text or bytes, not {type(data).__name__}", field="data")
        try:
            encoded = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
        except UnicodeEncodeError:
            raise InvalidRequest("must be valid Unicode (it holds a lone surrogate)", field="data") from None
        await self._driver.write(encoded)

    async def close_stdin(self) -> None:
        """The program reads end of file after what was written."""
        await self._driver.close_stdin()

    async def resize(self, cols: int, rows: int) -> None:
        """Resizes its terminal; the program gets SIGWINCH."""
        await self._driver.resize(PtySize(cols, rows))

    async def signal(self, number: int) -> None:
        """Sends a signal to the program and its process group. Does nothing if it has ended."""
        if not isinstance(number, int) or not 0 <= number <= 64:
            raise InvalidRequest("must be a signal number", field="number")
        await self._driver.signal(int(number))

    async def kill(self) -> None:
        """Kills it and everything that it started, also what it left running when it ended."""
        await self._driver.kill()

    async def wait(self, timeout: float | None = None) -> ExecResult:
        """The result, when it has ended. `TimeoutError` after `timeout` seconds; the process continues.

        Raises what ended it if that was not its own exit: `ExecutionTimeout` of `spawn(timeout=)`, `MemoryExceeded`,
        `SessionEnded`, or what a callback raised. The output is what was kept: the end of it.
        """
        seconds = None if timeout is None else check_wait(timeout)
        try:
            async with asyncio.timeout(seconds) as deadline:
                return await self._driver.wait(self._callbacks)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise TimeoutError(f"process {self.pid} is still running after {seconds:g} s") from None

    def output(self) -> AsyncGenerator[OutputEvent]:
        """The output still kept, then new output as it arrives, as bytes, until the process has ended.

        An `anext` that times out loses nothing: the next one gets the output.
        """
        return CancellableIterator(self._driver.output())

    def start_callbacks(self, texts: Texts) -> None:
        """Calls back as output arrives. A callback that raises kills the process, and `wait` raises its error."""
        self._callbacks = asyncio.ensure_future(self.call_back(texts))

    async def call_back(self, texts: Texts) -> None:
        try:
            async with aclosing(self._driver.output()) as events:
                async for event in events:
                    await texts.deliver(event)
            await texts.finish()
        except Exception:
            await self._driver.kill_quietly()
            raise

    def __repr__(self) -> str:
        state = "running" if self.is_running else f"ended with {self.info.exit_code}"
        return f"<{type(self).__name__} {self.pid} {state}>"


class Process:
    """`AsyncProcess` for blocking code. Callbacks run in a thread of their own."""

    def __init__(self, process: AsyncProcess) -> None:
        self._async = process

    @property
    def pid(self) -> int:
        """The process id, as the guest sees it."""
        return self._async.pid

    @property
    def is_running(self) -> bool:
        return self.info.is_running

    @property
    def info(self) -> ProcessInfo:
        return self._async._driver.refresh_blocking()

    write = blocking(AsyncProcess.write)
    close_stdin = blocking(AsyncProcess.close_stdin)
    resize = blocking(AsyncProcess.resize)
    signal = blocking(AsyncProcess.signal)
    kill = blocking(AsyncProcess.kill)
    wait = blocking(AsyncProcess.wait)

    def output(self) -> Iterator[OutputEvent]:
        """The output still kept, then new output as it arrives, as bytes, until the process has ended."""
        return self._async._driver.output_blocking()

    def start_callbacks(self, on_stdout: OnText | None, on_stderr: OnText | None) -> None:
        """The callbacks run in a thread of their own, where they may block and call the sandbox."""
        queue, done = CallbackQueue(), Future[None]()
        texts = Texts(*(queue.wrap(call) if callable(call) else call for call in (on_stdout, on_stderr)))

        def serve() -> None:
            try:
                portal.call_with_callbacks(queue, self._async.call_back, texts)
                done.set_result(None)
            except BaseException as error:
                portal.call(self._async._driver.kill_quietly)
                done.set_exception(error)

        async def remember() -> None:
            self._async._callbacks = asyncio.wrap_future(done)

        portal.call(remember)
        start_daemon(serve, name="warmcell-output")

    def __repr__(self) -> str:
        return repr(self._async).replace("AsyncProcess", "Process")
