"""Checkpoints: sessions that start from one moment of another, and large buffers that they share until they write."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
from tests.contract.processes import alive
from tests.helpers import until

from warmcell import AsyncSandbox, Checkpoint, Limits, Sandbox, errors
from warmcell.sandbox.local import session_copies as module
from warmcell.sandbox.local.session_copies import resume_session

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]

#: A buffer that pickle keeps apart, as numpy's arrays do.
BIG = """
import pickle
class Big:
    def __init__(self, data): self.data = data
    def __reduce_ex__(self, protocol): return Big, (pickle.PickleBuffer(self.data),)
big = Big(bytearray(64 << 20)); big.data[5] = 7; same = big
small = Big(bytearray(b"small"))
"""
#: How many bytes of the mapped buffers this process has changed.
OWN_BYTES = """
own = 0; is_image = False
for line in open("/proc/self/smaps"):
    if "-" in line.split()[0]: is_image = "warmcell-image" in line
    elif is_image and line.startswith("Anonymous:"): own += int(line.split()[1]) * 1024
own
"""


def test_sessions_of_a_checkpoint_share_nothing_and_outlive_the_original() -> None:
    with Sandbox(forkable=True) as sandbox:
        session = sandbox.session("python")
        session.run("rows = [1, 2]; open('file', 'w').write('one'); open('/tmp/own', 'w').write('two')")
        checkpoint = session.checkpoint()
        session.run("rows.append(3); open('file', 'w').write('later')")
    with checkpoint:
        for number in range(2):
            branch = checkpoint.session()
            with branch.sandbox:
                look = "rows, open('file').read(), open('/tmp/own').read()"
                assert branch.run(look).value == "([1, 2], 'one', 'two')"
                branch.run(f"rows.append('of {number}'); open('file', 'w').write('changed')")
        last = checkpoint.session()
    with last.sandbox:
        assert last.run("rows").value == "[1, 2]"
        with pytest.raises(errors.SandboxDestroyed, match="checkpoint was closed"):
            checkpoint.session()


def test_large_buffers_are_mapped_and_take_memory_when_they_are_written() -> None:
    with Sandbox(forkable=True, limits=Limits(memory_mb=1024)) as sandbox:
        session = sandbox.session("python")
        assert session.run(BIG).error is None
        checkpoint = session.checkpoint()
    with checkpoint:
        one, two = checkpoint.session(), checkpoint.session()
    with one.sandbox, two.sandbox:
        assert one.run("big.data[5], same is big, bytes(small.data)").value == "(7, True, b'small')"
        assert one.run(OWN_BYTES).value == "0"
        one.run("big.data[5] = 9")
        assert 0 < int(one.run(OWN_BYTES).value or 0) < 1 << 20
        assert two.run("big.data[5]").value == "7"
        branch = one.fork()  # of a session that has mapped buffers itself
        with branch.sandbox:
            assert branch.run("big.data[5], len(big.data)").value == f"(9, {64 << 20})"
        assert one.run("del big, same, Big; import gc; gc.collect();").error is None
        assert one.run("'warmcell-image' in open('/proc/self/maps').read()").value == "False"


def await_next(checkpoint: Checkpoint) -> int:
    """Waits until the sandbox of the next session is prepared. Returns the pid of its agent."""
    driver = checkpoint._async._driver
    assert isinstance(driver, module.LocalCheckpoint)
    until(lambda: driver._next is not None and driver._next.done())
    assert driver._next is not None
    cage = driver._next.result()[0].live.current()
    assert cage is not None
    return cage.pid


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared sandboxes are not ended, however long this machine takes."""
    monkeypatch.setattr(module, "READY_SECONDS", 3600.0)


@pytest.mark.usefixtures("patient")
def test_the_sandbox_of_the_next_session_is_prepared_and_ends_with_the_checkpoint() -> None:
    with Sandbox(forkable=True) as sandbox:
        session = sandbox.session("python")
        session.run("import random; random.seed(1); x = [1]")
        checkpoint = session.checkpoint()
    with checkpoint:
        first = checkpoint.session()
        with first.sandbox:
            first.run("x.append(2)")
            prepared = await_next(checkpoint)
            second = checkpoint.session(reseed=False)
            with second.sandbox:
                assert second.sandbox._async._driver.live.current().pid == prepared
                assert second.run("x, random.random()").value == "([1], 0.13436424411240122)"
                unused = await_next(checkpoint)
                assert alive([unused])
    assert not alive([unused])


@pytest.mark.usefixtures("patient")
def test_a_prepared_sandbox_that_ended_is_replaced() -> None:
    with Sandbox(forkable=True) as sandbox, sandbox.session("python") as session:
        session.run("x = 1")
        with session.checkpoint() as checkpoint:
            checkpoint.session().sandbox.destroy()
            killed = await_next(checkpoint)
            os.kill(killed, signal.SIGKILL)
            second = checkpoint.session()
            with second.sandbox:
                assert second.run("x").value == "1"


def test_a_prepared_sandbox_that_nobody_uses_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READY_SECONDS", 0.0)
    with Sandbox(forkable=True) as sandbox, sandbox.session("python") as session:
        session.run("x = 1")
        with session.checkpoint() as checkpoint:
            checkpoint.session().sandbox.destroy()
            driver = checkpoint._async._driver
            assert isinstance(driver, module.LocalCheckpoint)
            until(lambda: driver._next is None and not driver._under_way)
            last = checkpoint.session()
            with last.sandbox:
                assert last.run("x").value == "1"


@pytest.mark.usefixtures("patient")
async def test_sessions_taken_in_a_row_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next sandbox is begun when the last is taken, before its session has read the image."""
    may_prepare, is_next_begun = asyncio.Event(), []
    plain_prepare, plain_resume = module.LocalCheckpoint._prepare, resume_session

    async def prepare(self: module.LocalCheckpoint) -> object:
        await may_prepare.wait()
        return await plain_prepare(self)

    async def resume(*arguments: Any) -> None:
        is_next_begun.append(driver._next is not None)
        may_prepare.clear()
        await plain_resume(*arguments)

    monkeypatch.setattr(module.LocalCheckpoint, "_prepare", prepare)
    monkeypatch.setattr(module, "resume_session", resume)
    async with AsyncSandbox(forkable=True) as sandbox, sandbox.session("python") as session:
        await session.run("x = 1")
        async with await session.checkpoint() as checkpoint:
            driver: Any = checkpoint._driver
            may_prepare.set()
            first = await checkpoint.session()
            taking = asyncio.ensure_future(checkpoint.session())
            while driver._next is not None:
                await asyncio.sleep(0)
            may_prepare.set()
            second = await taking
            may_prepare.set()
            async with first.sandbox, second.sandbox:
                assert (await second.run("x")).value == "1"
            assert is_next_begun == [False, True]


def test_what_cannot_be_kept_is_refused_by_name() -> None:
    with Sandbox(forkable=True) as sandbox, sandbox.session("python") as session:
        session.run("squares = (n * n for n in range(10))")
        with pytest.raises(errors.InvalidRequest, match="the variable 'squares' cannot be copied"):
            session.checkpoint()
        session.run("del squares; x = 1")
        with session.checkpoint() as checkpoint, checkpoint.session().sandbox as other:
            assert other is not sandbox
    with (
        Sandbox() as sandbox,
        sandbox.session("python") as session,
        pytest.raises(errors.InvalidRequest, match="forkable=True"),
    ):
        session.checkpoint()


def test_a_crafted_object_is_loaded_in_the_cage_of_the_new_session() -> None:
    crafted = "import os\nclass Crafted:\n    def __reduce__(self): return os.getpid, ()\nmade = Crafted()"
    with Sandbox(forkable=True) as sandbox, sandbox.session("python") as session:
        session.run(crafted)
        with session.checkpoint() as checkpoint:
            branch = checkpoint.session()
            with branch.sandbox:
                assert branch.run("made == os.getpid()").value == "True"


async def test_the_asynchronous_form() -> None:
    async with AsyncSandbox(forkable=True) as sandbox, sandbox.session("python") as session:
        await session.run("x = 1")
        async with await session.checkpoint() as checkpoint:
            branch = await checkpoint.session(reseed=False)
            async with branch.sandbox:
                assert (await branch.run("x")).value == "1"
        assert checkpoint.is_closed
