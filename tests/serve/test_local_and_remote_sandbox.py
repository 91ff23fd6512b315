"""One contract for a `Sandbox` here and one on a server: the same calls, results, callbacks and errors."""

from __future__ import annotations

import inspect
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import PATIENCE, eventually
from tests.serve.conftest import Server

from warmcell import (
    AsyncClient,
    AsyncSandbox,
    Client,
    CommandNotFound,
    ExecutionTimeout,
    InvalidRequest,
    PtySize,
    Sandbox,
    SandboxDestroyed,
    errors,
)
from warmcell.interfaces.client.client import AsyncRemoteSandbox, RemoteSandbox
from warmcell.interfaces.client.http_files import HttpFiles
from warmcell.sandbox.async_base import AsyncSandboxBase
from warmcell.workspace.workspace import Workspace

Either = Sandbox | RemoteSandbox
Make = Callable[..., Either]
#: What needs the host of the sandbox, and the changes of one of its directories.
ONLY_HERE = {"work_dir", "spawn_code", "connect", "use_packages", "packages_directory", "network_update"} | {
    *("changes", "changes_patch", "commit", "discard", "branch", "keep_changes", "changes_mechanism", "local_changes"),
    *("end_for_review", "enable_session_images", "write_session", "read_session"),
    *("pause_programs", "resume_programs"),
}
GREETING = """
import socket
listening = socket.create_server(('127.0.0.1', 8400))
print('up', flush=True)
while True:
    client, _ = listening.accept()
    client.recv(9999)
    client.sendall(b'HTTP/1.0 200 OK\\r\\n\\r\\nhello')
    client.close()
"""


@pytest.fixture(scope="module", params=["here", "there"])
def make(request: pytest.FixtureRequest, server: Server) -> Iterator[Make]:
    if request.param == "here":
        yield Sandbox
    else:
        with Client(server.url) as client:
            yield client.sandbox


@pytest.fixture(scope="module")
def sandbox(make: Make) -> Iterator[Either]:
    with make(env={"A": "b"}, timeout=20) as made:
        yield made


@pytest.mark.parametrize(("here", "there"), [(AsyncSandbox, AsyncRemoteSandbox), (Sandbox, RemoteSandbox)])
def test_a_remote_sandbox_has_the_same_methods(here: type, there: type) -> None:
    public = {name for name in dir(here) if not name.startswith("_")} - ONLY_HERE
    assert public == {name for name in dir(there) if not name.startswith("_")}
    assert all(inspect.signature(getattr(here, name)) == inspect.signature(getattr(there, name))
        for name in public if callable(getattr(here, name)))  # fmt: skip


def test_every_file_method_has_its_route() -> None:
    """`HttpFiles.call` finds its methods by the names and arguments of those of `Workspace`."""
    for name in dir(AsyncSandboxBase):
        method = getattr(Workspace, name, None)
        if name.startswith("_") or getattr(AsyncSandboxBase, name) is None or not inspect.isfunction(method):
            continue
        if getattr(getattr(AsyncSandboxBase, name), "__wrapped__", None) is method:
            own = inspect.signature(getattr(HttpFiles, name)).parameters
            assert list(own) == list(inspect.signature(method).parameters), name


def test_runs(sandbox: Either) -> None:
    assert sandbox.sh("echo $A; exit 3").exit_code == 3
    assert sandbox.exec("cat", ["-"], stdin=b"\xff\0").stdout_bytes == b"\xff\0"
    assert sandbox.run("console.log(6 * 7)", "javascript").stdout == "42\n"
    assert sandbox.exec_python("print(1)").stdout == "1\n"
    heard: list[tuple[str, str]] = []
    result = sandbox.sh(
        "echo ä; echo b >&2",
        on_stdout=lambda text: heard.append(("out", text)),
        on_stderr=lambda t: heard.append(("err", t)),
    )
    assert sorted(heard) == [("err", "b\n"), ("out", "ä\n")] and result.stdout == "ä\n"
    assert {"sh", "cat"} <= set(sandbox.available_tools())
    assert sandbox.limits.memory_mb == 512 and "python" in sandbox.capabilities().supported_languages


def test_errors_have_the_same_class_and_fields(sandbox: Either) -> None:
    with pytest.raises(ExecutionTimeout) as late:
        sandbox.sh("echo so far; sleep 60", timeout=2)
    assert (late.value.timeout, late.value.clock, late.value.result.stdout) == (2, "wall", "so far\n")
    with pytest.raises(CommandNotFound) as missing:
        sandbox.exec("no-such-command")
    assert missing.value.command == "no-such-command" and missing.value.fault == "caller"
    with pytest.raises(errors.FileMissing) as absent:
        sandbox.read_file("absent")
    assert absent.value.path == "absent"
    with pytest.raises(errors.PathTraversal) as outside:
        sandbox.read_file("../outside")
    assert outside.value.path == "../outside" and outside.value.hint
    with pytest.raises(errors.LimitExceeded) as large:
        sandbox.write_file("large", b"12345") or sandbox.read_file("large", max_bytes=4)
    assert large.value.limit == 4
    sandbox.write_file("p", "one\n")
    with pytest.raises(errors.PatchRejected) as unfit:
        sandbox.apply_patch("--- a/p\n+++ b/p\n@@ -1 +1 @@\n-two\n+three\n")
    assert (unfit.value.misfits[0].path, unfit.value.misfits[0].hunk) == ("p", 1)
    with pytest.raises(InvalidRequest) as wrong:
        sandbox.attach(999_999)
    assert wrong.value.field == "pid"
    with pytest.raises(errors.SnapshotNotFound):
        sandbox.restore("0" * 32)
    with pytest.raises(errors.NetworkingDisabled):
        sandbox.fetch("http://example.org")


#: What Python, or the HTTP client, cannot work with must still become a typed error.
ODD: dict[str, Callable[[Either], object]] = {
    "a pid of 5,000 digits": lambda sandbox: sandbox.attach(10**5000),
    "a pid as text": lambda sandbox: sandbox.attach("5"),  # type: ignore[arg-type]
    "a pid that cannot be hashed": lambda sandbox: sandbox.attach([5]),  # type: ignore[arg-type]
    "a size below zero of 5,000 digits": lambda sandbox: sandbox.read_file("absent", max_bytes=-(10**5000)),
    "a size as text": lambda sandbox: sandbox.download(".", max_bytes="5"),  # type: ignore[arg-type]
    "a size of 5,000 digits": lambda sandbox: sandbox.read_file("absent", max_bytes=10**5000),
    "a count as text": lambda sandbox: sandbox.list_dir(".", max_entries="5"),  # type: ignore[arg-type]
    "a file that is a number": lambda sandbox: sandbox.write_file("odd", 5),  # type: ignore[arg-type]
    "a file that is nothing": lambda sandbox: sandbox.write_file("odd", None),  # type: ignore[arg-type]
    "a lone surrogate": lambda sandbox: sandbox.run("print('\ud800')"),
}


@pytest.mark.parametrize("call", ODD.values(), ids=ODD.keys())
def test_odd_arguments_are_typed_errors(sandbox: Either, call: Callable[[Either], object]) -> None:
    with pytest.raises(errors.SandboxError):
        call(sandbox)


def test_a_wait_may_be_any_number(sandbox: Either) -> None:
    process = sandbox.spawn(["sleep", "1000"])
    with pytest.raises(InvalidRequest):
        process.wait("5")  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        process.wait(-1)
    process.kill()
    assert {process.wait(seconds).signal for seconds in (10**5000, float("inf"), None)} == {signal.SIGKILL}


def test_a_callback_that_raises_ends_the_run(sandbox: Either) -> None:
    def no(text: str) -> None:
        raise ZeroDivisionError(text)

    with pytest.raises(ZeroDivisionError, match="go"):
        sandbox.sh("echo go; sleep 60", on_stdout=no)
    assert sandbox.sh("true").exit_code == 0


def test_files(sandbox: Either, tmp_path: Path) -> None:
    sandbox.mkdir("d/e", parents=True)
    sandbox.write_file("d/e/a b#?.txt", "text")
    assert sandbox.read_text("d/e/a b#?.txt") == "text" and sandbox.exists("d/e") and not sandbox.exists("d/x")
    assert [(entry.name, entry.is_dir) for entry in sandbox.list_dir("d")] == [("e", True)]
    assert sandbox.stat("d/e/a b#?.txt").size == 4
    with pytest.raises(errors.WorkspaceError):
        sandbox.remove("d", recursive=False)
    sandbox.upload(b"bytes", "up")
    sandbox.upload(b"#!/bin/sh\necho $0", "tool", executable=True)
    sandbox.upload(b"#!/bin/sh\necho ran $0", "tool")  # what is there keeps it
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/one").write_text("1")
    (tmp_path / "script").write_text("#!/bin/sh\necho ran $0")
    (tmp_path / "script").chmod(0o755)
    (tmp_path / "tree/link").symlink_to("one")
    uploaded = sandbox.upload(tmp_path / "tree", "tree")
    assert (uploaded.files, uploaded.skipped, sandbox.read_file("tree/one")) == (1, ("link",), b"1")
    sandbox.upload(tmp_path / "tree/one", "tree")
    sandbox.upload(tmp_path / "script")
    assert sandbox.sh("./script; ./tool").stdout == "ran ./script\nran ./tool\n"
    assert sandbox.sh("test -x tree/one").exit_code == 1
    sandbox.upload(sandbox.download("d"), "copy", extract=True)
    assert sandbox.read_text("copy/e/a b#?.txt") == "text"
    patched = sandbox.apply_patch("--- a/one\n+++ b/one\n@@ -1 +1 @@\n-1\n\\ No newline at end of file\n+2\n", "tree")
    assert [change.kind for change in patched] == ["modified"] and sandbox.read_text("tree/one") == "2\n"
    assert ("up", "created") in {(change.path, change.kind) for change in sandbox.diff()}
    sandbox.mark()
    assert sandbox.diff() == [] and sandbox.read_before("up") == sandbox.read_file("up")
    before = sandbox.snapshot()
    sandbox.remove("copy")
    with sandbox.fork() as fork, sandbox.fork(before) as earlier:
        assert not fork.exists("copy") and earlier.exists("copy")
    sandbox.restore(before)
    assert sandbox.exists("copy")


def test_what_happens_to_files(sandbox: Either) -> None:
    with sandbox.watch() as events:
        sandbox.write_file("seen", "x")
        assert next(event for event in events if event.path == "seen").kind == "created"


def test_processes(sandbox: Either) -> None:
    heard: list[str] = []
    process = sandbox.spawn("read x; echo got $x; read y; exit 5", on_stdout=heard.append)
    assert process.is_running and process.info.command.startswith("read x")
    process.write("word\n")
    with pytest.raises(TimeoutError, match="is still running after"):
        process.wait(0.2)
    process.close_stdin()
    result = process.wait(30)
    assert (result.stdout, result.exit_code, heard) == ("got word\n", 5, ["got word\n"])
    assert not process.is_running and process.pid in [info.pid for info in sandbox.processes()]
    assert b"".join(event.data for event in sandbox.attach(process.pid).output()) == b"got word\n"
    terminal = sandbox.spawn(["sh"], pty=PtySize(70, 20))
    terminal.resize(71, 21)
    terminal.write("stty size; exec sleep 60\n")
    seen = b""
    for event in terminal.output():
        seen += event.data
        if b"21 71" in seen:
            break
    while terminal.is_running:  # the shell itself, until it has become something else, bears it
        terminal.signal(signal.SIGTERM)
        with suppress(TimeoutError):
            terminal.wait(0.5)
    assert terminal.wait(30).signal == signal.SIGTERM
    sleeper = sandbox.spawn("sleep 60")
    sleeper.kill()
    assert sleeper.wait(30).signal == signal.SIGKILL
    with pytest.raises(ExecutionTimeout):
        sandbox.spawn("sleep 60", timeout=0.3).wait(30)


def test_sessions(make: Make) -> None:
    with make(forkable=True) as sandbox, sandbox.session("python") as session:
        session.run("x = 6")
        heard: list[str] = []
        shown: list[Any] = []
        code = "print('a'); name = input('who? '); display(name)\nx * 7"
        cell = session.run(
            code, on_stdout=heard.append, on_display=shown.append, on_input=lambda prompt: prompt.strip() + "me"
        )
        assert (cell.value, cell.stdout, cell.ok) == ("42", "".join(heard), True)
        assert [display.text for display in shown] == ["'who?me'", "42"] and shown[1].is_result
        assert session.run("1/0").error.name == "ZeroDivisionError"
        assert session.variables()["x"] == "6"
        with pytest.raises(ExecutionTimeout) as late:
            session.run("while True: pass", timeout=0.5)
        assert late.value.timeout == 0.5
        stopping = threading.Thread(target=lambda: eventually(lambda: sandbox.exists("begun")) and session.interrupt())
        stopping.start()
        code = "open('begun', 'w').close(); import time; time.sleep(60)"
        assert session.run(code).error.name == "KeyboardInterrupt"
        stopping.join()
        branch = session.fork()
        with branch.sandbox:
            assert branch.run("x += 1; x").value == "7"
        with pytest.raises(errors.SessionEnded) as ended:
            session.run("import os; print('last', flush=True); os._exit(3)")
        assert ended.value.reason and ended.value.result.stdout == "last\n"
        session.restart()
        assert "x" not in session.variables()
        session.close()
        with pytest.raises(errors.SessionEnded):
            session.run("1")


def test_input_without_an_answer(make: Make) -> None:
    with make() as sandbox, sandbox.session("python") as session:
        assert session.run("input()", on_input=lambda prompt: None).error.name == "EOFError"
        with pytest.raises(InvalidRequest, match="on_input"):
            session.run("input()", on_input=lambda prompt: 5)
        assert session.run("input()", on_input=lambda prompt: "").value == "''"


def test_ports(sandbox: Either) -> None:
    process = sandbox.spawn(["python3", "-c", GREETING])
    next(iter(process.output()))
    with sandbox.expose(8400) as port:
        assert port.guest_port == 8400
        assert httpx.get(port.url, trust_env=False, timeout=30).text == "hello"
        assert httpx.get(port.url, headers={"host": "evil.example"}, trust_env=False, timeout=30).status_code == 421
        with socket.create_connection((port.host, port.port), timeout=PATIENCE) as browser:
            time.sleep(0.3)  # a browser connects ahead of its request
            browser.sendall(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
            assert browser.recv(100).startswith(b"HTTP/1.1 421 ")
    with pytest.raises(httpx.HTTPError):
        httpx.get(port.url, trust_env=False, timeout=30)
    with sandbox.expose(8400, wait=PATIENCE):
        pass
    with pytest.raises(errors.ExecutionFailed, match="nothing listens on port 8401"):
        sandbox.expose(8401, wait=0.2)
    with sandbox.expose(8401) as nobody, pytest.raises(httpx.HTTPError):
        httpx.get(nobody.url, trust_env=False, timeout=30)
    process.kill()


def test_tools(sandbox: Either) -> None:
    tools = sandbox.tools()
    assert tools.call("run_code", {"language": "python", "code": "x = 1; x"})["status"] == "success"
    assert "run_code" in [definition.name for definition in tools.definitions]


def test_the_end(make: Make) -> None:
    sandbox = make()
    process = sandbox.spawn("sleep 60")
    sandbox.destroy()
    sandbox.destroy()
    for call in (lambda: sandbox.sh("true"), sandbox.list_dir, sandbox.processes, process.kill, sandbox.watch):
        with pytest.raises(SandboxDestroyed):
            call()


async def test_the_async_form_of_the_same(server: Server) -> None:
    async with AsyncClient(server.url) as client, await client.sandbox() as sandbox:
        heard: list[str] = []

        async def hear(text: str) -> None:
            heard.append(text)

        process = await sandbox.spawn("echo a; echo b", on_stdout=hear)
        assert (await process.wait(30)).exit_code == 0 and "".join(heard) == "a\nb\n"
        async with sandbox.session("command") as session:
            await session.run("y=5")
            assert (await session.run("echo $y")).stdout == "5\n"
        async with sandbox.watch(recursive=True) as events:
            await sandbox.write_file("deep/file", "x")
            async for event in events:
                if event.path == "deep/file":
                    break
        gone = await client.sandbox(lifetime=1)
        with pytest.raises(SandboxDestroyed):
            while True:
                await gone.sh("sleep 0.3")
