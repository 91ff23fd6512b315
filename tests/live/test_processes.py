"""`spawn`, `processes`, `attach`: programs that outlive the call that started them, blocking and async."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import select
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import PATIENCE, in_a_fork, until

from warmcell import AsyncSandbox, ExecResult, FakeBackend, Limits, Process, Sandbox, errors
from warmcell.interfaces.seats.cage_commands import CageCommands
from warmcell.lifetime.portal import portal
from warmcell.sandbox.local.guests import ProcessGuest

pytestmark = pytest.mark.needs("linux", "user namespaces")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


def test_a_process_gives_a_result(sandbox: Sandbox) -> None:
    process = sandbox.spawn("echo out; echo err >&2; exit 3")
    result = process.wait(30)
    assert (result.stdout, result.stderr, result.exit_code, result.signal) == ("out\n", "err\n", 3, None)
    assert result.enforced.isolation_class == "process+sandbox"
    assert result.duration > 0
    assert not process.is_running
    assert process.wait() == result


def test_it_goes_on_while_others_are_called(sandbox: Sandbox) -> None:
    process = sandbox.spawn(["python3", "-c", "while True: print(input() + '!', flush=True)"])
    assert process.is_running
    sandbox.sh("true")
    process.write("hello\n")
    events = process.output()
    assert next(events).data == b"hello!\n"
    process.write(b"again\n")
    assert next(events).data == b"again!\n"
    process.close_stdin()
    assert process.wait(30).exit_code == 1  # EOFError
    with pytest.raises(errors.InvalidRequest, match="no longer reads"):
        process.write("late")
    with pytest.raises(errors.InvalidRequest, match="lone surrogate"):
        process.write("\ud83d")


def test_work_directory_environment_and_shared_places(sandbox: Sandbox) -> None:
    sandbox.write_file("sub/note", "text")
    process = sandbox.spawn("pwd; cat note; echo $COLOUR; echo shared >/tmp/shared", cwd="sub", env={"COLOUR": "red"})
    assert process.wait(30).stdout == "/work/sub\ntextred\n"
    assert sandbox.spawn("cat /tmp/shared").wait(30).stdout == "shared\n"


def test_waiting_has_a_time_and_the_process_goes_on(sandbox: Sandbox) -> None:
    process = sandbox.spawn("sleep 1000")
    with pytest.raises(TimeoutError, match="is still running after"):
        process.wait(0.05)
    assert process.is_running
    process.kill()
    assert process.wait(30).signal == signal.SIGKILL


async def test_callers_that_wait_in_vain_leave_nothing() -> None:
    async with AsyncSandbox() as sandbox:
        process = await sandbox.spawn(["sleep", "1000"])
        for _ in range(50):
            with pytest.raises(TimeoutError):
                await process.wait(0)
        assert len(vars(process.local._process.finished)["_done_callbacks"]) < 10
        await process.kill()
        assert (await process.wait(30)).signal == signal.SIGKILL


async def test_the_result_of_a_process_that_has_ended_takes_no_time() -> None:
    async with AsyncSandbox() as sandbox:
        process = await sandbox.spawn("exit 3")
        await asyncio.wrap_future(process.local.exit_future)
        assert (await process.wait(0)).exit_code == 3


def test_a_process_past_its_time_is_ended_with_its_tree(sandbox: Sandbox) -> None:
    process = sandbox.spawn("echo begun; (sleep 2001 &); sleep 2000", timeout=4)
    with pytest.raises(errors.ExecutionTimeout) as told:
        process.wait(30)
    assert told.value.timeout == 4
    assert told.value.result is not None and told.value.result.stdout == "begun\n"
    look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    until(lambda: "sleep 200" not in sandbox.spawn(look).wait(30).stdout)  # killed, and about to be gone


def test_a_program_that_exits_in_time_has_not_timed_out(tmp_path: Path) -> None:
    """The loop of its cage stands still until the deadline has passed, and looks at the deadline first."""
    with Sandbox(tmp_path) as sandbox:
        process = sandbox.spawn("until [ -e go ]; do sleep 0.01; done; exit 3", timeout=3600)
        live: Any = process._async.local._process
        cage: Any = sandbox._async._driver.live._cage

        def come_late() -> None:
            (tmp_path / "go").touch()
            arrival = select.poll()
            arrival.register(cage._channel._control, select.POLLIN)
            arrival.poll(PATIENCE * 1000)
            live._run_out(3600)

        cage.loop.call(come_late)
        assert process.wait(PATIENCE).exit_code == 3


def test_a_missing_command_ends_with_127(sandbox: Sandbox) -> None:
    for command in ("no-such-command", ["no-such-command"]):
        result = sandbox.spawn(command).wait(30)
        assert result.exit_code == 127
        assert "not found" in result.stderr


def test_a_command_line_may_be_as_long_as_the_kernels(sandbox: Sandbox) -> None:
    """Of which no word has more than 128 KiB."""
    words = ["x" * 65536] * 24
    assert sandbox.spawn(["sh", "-c", "echo $#", "sh", *words]).wait(30).stdout == "24\n"


async def test_a_callback_that_comes_late_hears_all() -> None:
    """The program prints more than is kept before whoever is to hear it comes to it."""
    heard: list[str] = []
    async with AsyncSandbox() as sandbox:
        process = await sandbox.spawn("yes | head -c 5000000; echo >&2", on_stdout=heard.append)
        time.sleep(1)  # the event loop has other things to do
        await process.wait(60)
    assert sum(map(len, heard)) == 5_000_000


def test_a_blocking_callback_that_comes_late_hears_all(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    start_callbacks = Process.start_callbacks

    def late(*arguments: Any) -> None:
        time.sleep(1)
        start_callbacks(*arguments)

    monkeypatch.setattr(Process, "start_callbacks", late)
    sandbox.spawn("yes | head -c 5000000", on_stdout=heard.append).wait(60)
    assert sum(map(len, heard)) == 5_000_000


def test_what_a_seats_command_prints_is_gathered_whole(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = CageCommands._collect

    async def late(*arguments: Any) -> ExecResult:
        await asyncio.sleep(1)
        return await gathered(*arguments)

    monkeypatch.setattr(CageCommands, "_collect", late)
    assert portal.call(CageCommands(sandbox).run, "yes | head -c 5000000").stdout == "y\n" * 2_500_000


async def test_reading_and_writing_a_file_for_a_seat_ends(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that is root in its image can put something endless in the place of `cat`."""

    async def never(*_: object, timeout: float | None = None, **__: object) -> ExecResult:
        assert timeout is not None, "without a limit"
        raise errors.ExecutionTimeout(timeout)

    monkeypatch.setattr(CageCommands, "run", never)
    commands = CageCommands(sandbox)
    for attempt in (commands.read("a.txt"), commands.write("a.txt", b"")):
        with pytest.raises(TimeoutError, match=r"a\.txt"):
            await attempt


def test_signals_reach_the_group(sandbox: Sandbox) -> None:
    process = sandbox.spawn("trap 'exit 9' INT; echo ready; while :; do sleep 0.05; done")
    assert next(process.output()).data == b"ready\n"
    process.signal(signal.SIGINT)
    assert process.wait(30).exit_code == 9
    process.signal(signal.SIGINT)  # nothing happens
    process.kill()


def test_they_are_listed_and_can_be_attached_to(sandbox: Sandbox) -> None:
    process = sandbox.spawn("echo first; read word; echo $word; sleep 1000")
    until(lambda: _kept(process))
    info = next(item for item in sandbox.processes() if item.pid == process.pid and item.is_running)
    assert (info.command, info.cwd, info.exit_code) == ("echo first; read word; echo $word; sleep 1000", "/work", None)
    other = sandbox.attach(process.pid)
    events = other.output()
    assert next(events).data == b"first\n"
    other.write("second\n")
    assert next(events).data == b"second\n"
    other.kill()
    assert list(events) == []
    info = next(item for item in sandbox.processes() if item.pid == process.pid)
    assert (info.is_running, info.exit_code) == (False, 128 + signal.SIGKILL)
    assert b"".join(event.data for event in sandbox.attach(process.pid).output()) == b"first\nsecond\n"
    with pytest.raises(errors.InvalidRequest, match="no process"):
        sandbox.attach(999_999)


def _kept(process: Process) -> bytes:
    return process._async.local._process.outputs[0].ring.content


def test_the_last_hundred_that_ended_stay_listed(sandbox: Sandbox) -> None:
    for _ in range(101):
        sandbox.spawn(["true"]).wait(30)
    assert len([info for info in sandbox.processes() if not info.is_running]) == 100


def test_output_that_nobody_reads_holds_nobody_up(sandbox: Sandbox) -> None:
    process = sandbox.spawn("head -c 5000000 /dev/zero | tr '\\0' 'x'; echo end")
    result = process.wait(60)
    assert result.stdout_truncated
    assert len(result.stdout_bytes) == 1 << 20
    assert result.stdout.startswith("x")
    assert result.stdout.endswith("xend\n")


def test_callbacks_hear_everything_in_order(sandbox: Sandbox) -> None:
    heard: list[str] = []
    errors_heard: list[str] = []
    process = sandbox.spawn(
        "for i in 1 2 3; do echo $i; done; printf '\\303'; sleep 0.1; printf '\\251\\n'; echo oops >&2",
        on_stdout=heard.append,
        on_stderr=errors_heard.append,
    )
    process.wait(30)
    assert "".join(heard) == "1\n2\n3\né\n"
    assert errors_heard == ["oops\n"]


def test_a_callback_may_call_the_sandbox_and_is_in_another_thread(sandbox: Sandbox) -> None:
    seen: list[tuple[str, bool]] = []

    def on_stdout(text: str) -> None:
        seen.append(
            (sandbox.spawn("echo inner").wait(30).stdout, threading.current_thread() is threading.main_thread())
        )

    sandbox.spawn("echo outer", on_stdout=on_stdout).wait(30)
    assert seen == [("inner\n", False)]


def test_a_callback_that_raises_ends_the_process(sandbox: Sandbox) -> None:
    def on_stdout(text: str) -> None:
        raise ZeroDivisionError(text)

    process = sandbox.spawn("echo now; sleep 1000", on_stdout=on_stdout)
    with pytest.raises(ZeroDivisionError, match="now"):
        process.wait(30)
    assert not process.is_running


def test_a_slow_listener_holds_the_program_up_and_loses_nothing(sandbox: Sandbox) -> None:
    process = sandbox.spawn("echo; read line; head -c 6000000 /dev/zero")
    events = process.output()
    next(events)  # now it is listening: output before that is kept only up to a limit
    process.write("\n")
    first = next(events)
    time.sleep(0.3)
    assert process.is_running
    assert len(first.data) + sum(len(event.data) for event in events) == 6_000_000
    assert process.wait(30).exit_code == 0


def test_the_memory_limit_ends_the_cage_and_the_next_call_has_a_new_one() -> None:
    with Sandbox(limits=Limits(memory_mb=80)) as sandbox:
        other = sandbox.spawn("echo alive; sleep 1000")
        until(lambda: _kept(other))
        process = sandbox.spawn(["python3", "-c", "held = b'x' * 200_000_000; import time; time.sleep(1000)"])
        try:
            result = process.wait(60)
            assert result.signal == signal.SIGKILL  # a cgroup killed this one alone
        except errors.MemoryExceeded as told:
            assert told.limit_mb == 80
            with pytest.raises(errors.MemoryExceeded) as of_other:
                other.wait(30)
            assert of_other.value.result is not None and of_other.value.result.stdout == "alive\n"
        assert sandbox.spawn("echo new").wait(30).stdout == "new\n"


def test_an_idle_cage_ends_and_is_made_again() -> None:
    with Sandbox(idle_timeout=0.3) as sandbox:
        assert sandbox.spawn("echo 1 >/tmp/kept; sleep 0.6; cat /tmp/kept").wait(30).stdout == "1\n"
        cage = sandbox._async._driver.live._cage
        assert cage is not None
        until(lambda: cage.was_idle)
        assert sandbox.spawn("ls /tmp").wait(30).stdout == ""
        assert [info.exit_code for info in sandbox.processes()] == [0, 0]


def test_the_idle_timer_of_a_cage_is_one_however_many_programs_end() -> None:
    with Sandbox(idle_timeout=1000) as sandbox:
        for _ in range(10):
            sandbox.spawn("true").wait(30)
        cage = sandbox._async._driver.live._cage
        assert cage is not None and len(cage.loop._later) == 1


def test_the_end_of_the_sandbox_is_theirs() -> None:
    sandbox = Sandbox()
    process = sandbox.spawn("sleep 1000")
    sandbox.destroy()
    with pytest.raises(errors.SandboxDestroyed):
        process.wait()
    with pytest.raises(errors.SandboxDestroyed):
        process.write("x")
    with pytest.raises(errors.SandboxDestroyed):
        sandbox.spawn("true")
    with pytest.raises(errors.SandboxDestroyed):
        sandbox.processes()


def test_who_waits_while_it_is_destroyed_is_told() -> None:
    sandbox = Sandbox()
    process = sandbox.spawn("sleep 1000")
    told: list[BaseException] = []

    def wait() -> None:
        try:
            process.wait()
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    sandbox.destroy()
    thread.join(30)
    assert [type(error) for error in told] == [errors.SandboxDestroyed]


def test_the_async_twin() -> None:
    async def scenario() -> None:
        heard: list[str] = []

        async def on_stdout(text: str) -> None:
            await asyncio.sleep(0)
            heard.append(text)

        async with AsyncSandbox() as sandbox:
            process = await sandbox.spawn("read a; echo got $a", on_stdout=on_stdout)
            with pytest.raises(TimeoutError):
                await process.wait(0.05)
            await process.write("it\n")
            assert (await process.wait(30)).stdout == "got it\n"
            assert heard == ["got it\n"]
            many = [await sandbox.spawn(f"echo {number}") for number in range(20)]
            results = await asyncio.gather(*(process.wait(30) for process in many))
            assert [result.stdout for result in results] == [f"{number}\n" for number in range(20)]
            assert [event.data async for event in many[3].output()] == [b"3\n"]
            assert len(await sandbox.processes()) == 21

    asyncio.run(scenario())


def test_who_is_cancelled_while_it_starts_something_leaves_nothing_running() -> None:
    async def scenario() -> None:
        async with AsyncSandbox() as sandbox:
            await (await sandbox.spawn("true")).wait(30)
            for turns in range(12):
                task = asyncio.ensure_future(sandbox.spawn("exec sleep 3456"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await (await task).kill()
            count = "grep -lsx sleep /proc/[0-9]*/comm | wc -l"
            while (await (await sandbox.spawn(count)).wait(30)).stdout != "0\n":
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("", {}),
        ([], {}),
        (b"ls", {}),
        (["ls", 3], {}),
        ("ls", {"pty": (80, 24)}),
        ("ls", {"timeout": -1}),
        ("ls", {"env": {"A=": "b"}}),
        ("ls", {"on_stdout": 3}),
    ],
)
def test_what_makes_no_sense_is_refused(sandbox: Sandbox, command: object, options: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidRequest):
        sandbox.spawn(command, **options)  # type: ignore[arg-type]


def test_backends_without_live_cages_say_so() -> None:
    pytest.importorskip("wasmtime")
    with Sandbox(backend="wasm") as sandbox, pytest.raises(errors.InvalidRequest, match="backend='process'"):
        sandbox.spawn("ls")
    with (
        Sandbox(guest_factory=lambda _, config: ProcessGuest(config, FakeBackend())) as sandbox,
        pytest.raises(errors.InvalidRequest, match="backend='process'"),
    ):
        sandbox.spawn("ls")


def test_processor_time_is_one_limit_for_all_programs() -> None:
    with Sandbox(limits=Limits(cpu_seconds=1)) as sandbox:
        process = sandbox.spawn("echo begun; while :; do :; done")
        with pytest.raises(errors.ExecutionTimeout) as told:
            process.wait(60)
        assert told.value.result is not None and told.value.result.stdout == "begun\n"
        assert sandbox.spawn("echo new").wait(30).stdout == "new\n"


def test_counters_that_cannot_be_read_do_not_end_the_loop_of_the_cage(monkeypatch: pytest.MonkeyPatch) -> None:
    def usage() -> object:
        raise OSError(errno.EMFILE, "too many open files")

    with Sandbox() as sandbox:
        process = sandbox.spawn(["cat"])
        program: Any = process._async.local._process.program
        with monkeypatch.context() as patched:
            patched.setattr(program._cage._cell, "group", SimpleNamespace(usage=usage))
            assert sandbox.spawn("echo started").wait(30).stdout == "started\n"
        process.write("still here\n")
        process.close_stdin()
        assert process.wait(30).stdout == "still here\n"


def test_a_fork_of_the_program_has_none_of_it_and_may_have_its_own() -> None:
    with Sandbox() as sandbox:
        process = sandbox.spawn("read word; echo $word")

        def in_the_copy() -> object:
            with Sandbox() as other:
                return other.spawn("echo copy").wait(30).stdout, process.is_running

        assert in_a_fork(in_the_copy, ends="sys.exit") == ["copy\n", True]
        process.write("original\n")
        assert process.wait(30).stdout == "original\n"
