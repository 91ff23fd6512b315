"""`on_stdout` and `on_stderr`: text while it comes, in the caller's thread, and no way to hang or lose anything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.processes import descendants
from tests.helpers import FEATURES, eventually, require

from warmcell import (
    AsyncSandbox,
    CommandNotFound,
    ExecResult,
    ExecutionTimeout,
    InvalidRequest,
    OutputEvent,
    ProcessConfig,
    ResultEvent,
    Sandbox,
    SandboxDestroyed,
)
from warmcell.backends.output_callbacks import following
from warmcell.lifetime.portal import CallbackQueue, Portal
from warmcell.sandbox.local.guest_config import GuestConfig
from warmcell.sandbox.local.guests import ProcessGuest

pytestmark = [pytest.mark.needs("linux", "user namespaces")]
NO_POOL = ProcessConfig(pool_size=0, pool_min=0)
EURO = "€".encode()


class Stop(Exception):
    """A callback's own."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(config=NO_POOL) as made:
        yield made


def collector() -> tuple[list[str], dict[str, Any]]:
    seen: list[str] = []
    return seen, {"on_stdout": seen.append, "on_stderr": lambda text: seen.append(f"2:{text}")}


@pytest.mark.parametrize("way", ["exec", "sh", "run", "exec_python", "exec_js"])
def test_every_run_method_delivers_both_streams_and_the_result(sandbox: Sandbox, way: str) -> None:
    seen, callbacks = collector()
    script = "echo one; sleep 0.2; echo two >&2"
    if way == "exec_js":
        require(FEATURES["node"](), "there is no node")
    if way == "exec":
        result = sandbox.exec("sh", ["-c", script], **callbacks)
    elif way == "sh":
        result = sandbox.sh(script, **callbacks)
    elif way == "exec_python":
        code = "import sys, time; print('one'); time.sleep(0.2); print('two', file=sys.stderr)"
        result = sandbox.exec_python(code, **callbacks)
    elif way == "exec_js":
        result = sandbox.exec_js("console.log('one'); setTimeout(() => console.error('two'), 200)", **callbacks)
    else:
        result = sandbox.run(script, "command", **callbacks)
    assert seen == ["one\n", "2:two\n"]
    assert (result.stdout, result.stderr, result.exit_code) == ("one\n", "two\n", 0)


def test_callbacks_run_in_the_callers_thread_during_the_run(sandbox: Sandbox) -> None:
    threads: list[threading.Thread] = []

    def let_it_end(text: str) -> None:
        threads.append(threading.current_thread())
        if text == "waiting\n":
            sandbox.write_file("go", "")

    # Line-buffered; the run ends only after the callback got the line.
    code = "import os, time\nprint('waiting')\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('went')"
    result = sandbox.run(code, on_stdout=let_it_end, timeout=50)
    assert result.stdout == "waiting\nwent\n"
    assert set(threads) == {threading.current_thread()}


def test_a_callback_may_run_something_else_in_the_same_sandbox(sandbox: Sandbox) -> None:
    inner: list[ExecResult] = []
    sandbox.sh("echo outer", on_stdout=lambda text: inner.append(sandbox.sh(f"printf 'got %s' {text}", timeout=20)))
    assert [result.stdout for result in inner] == ["got outer"]


def test_a_callback_that_raises_ends_the_run_and_reaches_the_caller(sandbox: Sandbox) -> None:
    before = descendants()

    def refuse(text: str) -> None:
        raise Stop(text)

    with pytest.raises(Stop, match="begun"):
        sandbox.sh("echo begun; sleep 60", on_stdout=refuse, timeout=60)
    assert eventually(lambda: descendants() <= before)
    assert sandbox.sh("echo on").stdout == "on\n"


def test_a_callback_may_destroy_the_sandbox() -> None:
    made = Sandbox(config=NO_POOL)
    with pytest.raises(SandboxDestroyed):
        made.sh("echo x; sleep 60", on_stdout=lambda _: made.destroy(), timeout=60)


def test_limit_errors_come_after_the_text(sandbox: Sandbox) -> None:
    seen, callbacks = collector()
    with pytest.raises(ExecutionTimeout) as caught:
        sandbox.sh("printf 'so far \\342\\202'; sleep 60", timeout=4, **callbacks)
    assert "".join(seen) == "so far \ufffd"
    assert caught.value.result is not None
    assert caught.value.result.stdout == "so far \ufffd"


def test_callbacks_do_not_change_a_missing_command(sandbox: Sandbox) -> None:
    with pytest.raises(CommandNotFound):
        sandbox.exec("no-such-command", on_stdout=print)


def test_callbacks_must_be_callable(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="on_stdout"):
        sandbox.sh("true", on_stdout="print")  # type: ignore[arg-type]

    async def coroutine(text: str) -> None: ...

    with pytest.raises(InvalidRequest, match="on_stderr"):
        sandbox.sh("true", on_stderr=coroutine)


async def test_async_callbacks_are_awaited_and_may_use_the_sandbox() -> None:
    async with AsyncSandbox(config=NO_POOL) as made:

        async def write(text: str) -> None:
            await made.write_file("heard", text)

        await made.sh("echo x", on_stdout=write)
        assert await made.read_text("heard") == "x\n"
        seen: list[str] = []
        await made.run("print('plain')", on_stdout=seen.append)
        assert seen == ["plain\n"]

        async def refuse(text: str) -> None:
            raise Stop(text)

        with pytest.raises(Stop):
            await asyncio.wait_for(made.sh("echo x; sleep 60", on_stdout=refuse, timeout=60), 50)


async def test_an_async_callback_may_destroy_the_sandbox() -> None:
    made = AsyncSandbox(config=NO_POOL)

    async def destroy(_: str) -> None:
        await made.destroy()

    with pytest.raises(SandboxDestroyed):
        await asyncio.wait_for(made.sh("echo x; sleep 60", on_stdout=destroy, timeout=60), 50)


async def test_a_character_split_over_two_pieces_is_delivered_whole() -> None:
    async def events() -> Any:
        for piece in (EURO[:1], EURO[1:2], EURO[2:] + b"a", b"\xff", EURO[:2]):
            yield OutputEvent("stdout", piece)
            yield OutputEvent("stderr", piece)
        yield ResultEvent(ExecResult(stdout="whole"))

    seen: list[str] = []
    follow = following(seen.append, None)
    assert follow is not None
    assert (await follow(events())).stdout == "whole"
    assert seen == ["€a", "\ufffd", "\ufffd"]
    assert following(None, None) is None


async def test_callbacks_need_a_backend_that_streams() -> None:
    class Plain:
        name = "plain"

        async def execute(self, request: Any) -> ExecResult:
            return ExecResult(stdout="ran")

        async def aclose(self) -> None: ...

    def factory(_: str, config: GuestConfig) -> ProcessGuest:
        return ProcessGuest(config, Plain())  # type: ignore[arg-type]

    async with AsyncSandbox(guest_factory=factory) as made:
        assert (await made.sh("true")).stdout == "ran"
        with pytest.raises(InvalidRequest, match="plain"):
            await made.sh("true", on_stdout=print)


def test_an_interrupt_in_a_callback_ends_the_wait() -> None:
    own, queue = Portal(), CallbackQueue()
    ended = threading.Event()

    def raise_interrupt() -> None:
        raise KeyboardInterrupt  # as Ctrl-C in a callback: it must not reach the loop, which it would end

    async def ask() -> None:
        try:
            await queue.wrap(raise_interrupt)()
        finally:
            ended.set()

    async def still_there() -> bool:
        return True

    with pytest.raises(KeyboardInterrupt):
        own.call_with_callbacks(queue, ask)
    assert ended.is_set()
    assert own.call(still_there)
