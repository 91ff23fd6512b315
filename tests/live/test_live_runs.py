"""`Sandbox(live=True)`: exec, sh and run mean what they always mean, and share one cage."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import until

from warmcell import AsyncSandbox, Limits, Sandbox, errors

pytestmark = pytest.mark.needs("linux", "user namespaces")


@pytest.fixture(scope="module")
def live() -> Iterator[Sandbox]:
    with Sandbox(live=True, env={"GIVEN": "yes"}, limits=Limits(output_bytes=10_000)) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def plain() -> Iterator[Sandbox]:
    with Sandbox(env={"GIVEN": "yes"}, limits=Limits(output_bytes=10_000)) as sandbox:
        yield sandbox


CALLS = {
    "a command": lambda sandbox: sandbox.exec("echo", ["a", "b c"]),
    "its input": lambda sandbox: sandbox.exec("cat", stdin="typed"),
    "much input": lambda sandbox: sandbox.exec("wc", ["-c"], stdin="x" * 300_000),
    "input that nobody reads": lambda sandbox: sandbox.exec("true", stdin="x" * 300_000),
    "a script": lambda sandbox: sandbox.sh("echo $GIVEN; pwd; echo oops >&2; exit 4"),
    "a script by signal": lambda sandbox: sandbox.sh("kill -TERM $$"),
    "python": lambda sandbox: sandbox.run("import os, sys\nprint(os.getcwd(), sys.argv[1:], __name__)"),
    "a python that fails": lambda sandbox: sandbox.run("def f():\n    return 1 / 0\nf()"),
    "python's input": lambda sandbox: sandbox.run("print(input())", stdin="line\n"),
    "too much output": lambda sandbox: sandbox.sh("head -c 50000 /dev/zero | tr '\\0' x"),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_results_are_those_of_any_sandbox(live: Sandbox, plain: Sandbox, name: str) -> None:
    ours, theirs = CALLS[name](live), CALLS[name](plain)
    for field in ("stdout_bytes", "exit_code", "signal", "stdout_truncated", "stderr_truncated", "stdout"):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.stderr.replace("/code/runs/", "").split("/")[-1] == theirs.stderr.split("/")[-1]


@pytest.mark.needs("node")
def test_javascript_too(live: Sandbox) -> None:
    assert live.exec_js("console.log(6 * 7)").stdout == "42\n"


@pytest.mark.needs("gcc")
def test_what_is_compiled_too(live: Sandbox) -> None:
    program = '#include <stdio.h>\nint main(void) { puts("compiled"); return 3; }\n'
    result = live.run(program, "c")
    assert (result.stdout, result.exit_code) == ("compiled\n", 3)
    refused = live.run("int main(void) { return x; }", "c")
    assert refused.exit_code != 0 and "x" in refused.stderr


def test_they_share_processes_places_and_loopback(live: Sandbox) -> None:
    live.sh("echo note >/tmp/note; (python3 -m http.server 8123 >/tmp/log 2>&1 &)")
    assert live.exec("cat", ["/tmp/note"]).stdout == "note\n"
    ask = """
import time, urllib.request
for _ in range(200):
    try: print(urllib.request.urlopen("http://127.0.0.1:8123/").status); break
    except OSError: time.sleep(0.05)
"""
    assert live.run(ask).stdout == "200\n"


def test_a_missing_command_is_told_as_ever(live: Sandbox) -> None:
    with pytest.raises(errors.CommandNotFound, match="no-such"):
        live.exec("no-such")
    live.write_file("plain", "text")
    with pytest.raises(errors.CommandNotFound, match="not executable"):
        live.exec("./plain")


def test_a_run_past_its_time_ends_alone(live: Sandbox) -> None:
    other = live.spawn("sleep 1000")
    with pytest.raises(errors.ExecutionTimeout) as told:
        live.sh("echo begun; (setsid sleep 3001 &); sleep 3000", timeout=4)
    assert told.value.result is not None and told.value.result.stdout == "begun\n"
    assert other.is_running
    look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    until(lambda: "sleep 300" not in live.sh(look).stdout)  # killed, and about to be gone
    other.kill()


def test_callbacks_hear_it_and_end_it(live: Sandbox) -> None:
    heard: list[str] = []

    def hear(text: str) -> None:
        heard.append(text)
        live.write_file("heard-one", "")

    result = live.sh("echo one; until [ -e heard-one ]; do sleep 0.02; done; echo two", on_stdout=hear)
    assert heard == ["one\n", "two\n"] and result.stdout == "one\ntwo\n"

    def refuse(text: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        live.sh("echo now; sleep 3100", on_stdout=refuse)
    deadline = time.monotonic() + 30
    while "sleep 3100" in [info.command[-10:] for info in live.processes() if info.is_running]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_files_of_a_program_go_with_it(live: Sandbox) -> None:
    for _ in range(3):
        live.run("print(1)")
    # The listing is a script, and so has a file itself.
    assert live.sh("ls /code/runs").stdout.count("\n") == 1


def test_cancelling_ends_the_program() -> None:
    async def scenario() -> None:
        async with AsyncSandbox(live=True) as sandbox:
            task = asyncio.ensure_future(sandbox.sh("sleep 3200"))
            while not any(info.is_running for info in await sandbox.processes()):
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while any(info.is_running for info in await sandbox.processes()):
                await asyncio.sleep(0.02)
            assert [info.exit_code for info in await sandbox.processes()] == [128 + signal.SIGKILL]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_destroying_it_ends_what_runs() -> None:
    sandbox = Sandbox(live=True)
    told: list[BaseException] = []

    def run() -> None:
        try:
            sandbox.sh("sleep 3300")
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    sandbox.destroy()
    thread.join(30)
    assert [type(error) for error in told] == [errors.SandboxDestroyed]


def test_who_has_no_live_cage_refuses_when_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wasmtime")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(errors.InvalidRequest, match="backend='process'"):
        Sandbox(backend="wasm", live=True)
    assert list(tmp_path.iterdir()) == []


def test_a_class_without_live_cages_says_so() -> None:
    with (
        Sandbox(live=True, enforcer="landlock") as sandbox,
        pytest.raises(errors.EnforcerUnavailable, match="live cages"),
    ):
        sandbox.sh("true")
