"""A live cage whose start is cancelled or fails: nothing of it is left."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import Any, NoReturn

import pytest
from tests.helpers import open_descriptors, until

from warmcell import ExecutionFailed, ProcessBackend, ProcessConfig, Sandbox


@pytest.mark.needs("user namespaces")
def test_a_cage_that_was_made_for_a_cancelled_caller_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with ProcessBackend() as backend:
            launcher = backend._launcher
            make, made = launcher.live_cage, []
            is_made, may_return = threading.Event(), threading.Event()

            def make_slowly(*arguments: Any) -> Any:
                made.append(make(*arguments))
                is_made.set()
                may_return.wait(30)
                return made[-1]

            monkeypatch.setattr(launcher, "live_cage", make_slowly)
            task = asyncio.ensure_future(backend.live_cage())
            await asyncio.to_thread(is_made.wait, 30)
            assert made[0].is_alive
            task.cancel()
            await asyncio.sleep(0)
            may_return.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not made[0].is_alive

    asyncio.run(main())


def refuse_thread(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As where `ulimit -u` or a container allows no further process."""
    start = threading.Thread.start

    def start_unless_refused(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_unless_refused)


def refuse_loop(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(_: str) -> NoReturn:
        raise OSError(errno.EIO, name)

    monkeypatch.setattr("warmcell.backends.process.live.Loop", fail)


@pytest.mark.needs("user namespaces")
@pytest.mark.parametrize("refuse", [refuse_thread, refuse_loop])
def test_a_cage_whose_loop_cannot_start_is_closed(refuse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with ProcessBackend(ProcessConfig(pool_size=0, pool_min=0)) as backend:
        asyncio.run(backend.live_cage()).close()
        before = open_descriptors()
        with monkeypatch.context() as patched:
            refuse(patched, "warmcell-live")
            with pytest.raises(ExecutionFailed, match=r"could not start a thread: can't start|start the live cage"):
                asyncio.run(backend.live_cage())
        assert backend._launcher.pool._pinned == 0
        until(lambda: open_descriptors() <= before)


@pytest.mark.needs("user namespaces")
def test_a_port_whose_thread_cannot_start_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(config=ProcessConfig(pool_size=0, pool_min=0)) as sandbox:
        sandbox.spawn("true").wait(60)
        before = open_descriptors()
        refuse_thread(monkeypatch, "warmcell-port")
        with pytest.raises(ExecutionFailed, match="could not start a thread"):
            sandbox.expose(8000)
        until(lambda: open_descriptors() <= before)


@pytest.mark.needs("user namespaces")
def test_a_process_whose_callbacks_have_no_thread_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(config=ProcessConfig(pool_size=0, pool_min=0)) as sandbox:
        sandbox.spawn("true").wait(60)
        refuse_thread(monkeypatch, "warmcell-output")
        with pytest.raises(ExecutionFailed, match="could not start a thread"):
            sandbox.spawn("sleep 1000", on_stdout=print)
        assert not any(process.is_running for process in sandbox.processes())
