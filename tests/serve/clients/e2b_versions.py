"""One row of the table in docs/server.md: what the installed version of E2B's SDK can do here. By scripts/test-e2b."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib.metadata import version

from e2b import Sandbox


def sandboxes(sandbox: Sandbox) -> None:
    assert sandbox.is_running()
    assert Sandbox.connect(sandbox.sandbox_id).sandbox_id == sandbox.sandbox_id
    assert sandbox.sandbox_id in [item.sandbox_id for item in Sandbox.list().next_items()]
    sandbox.set_timeout(120)


def commands(sandbox: Sandbox) -> None:
    heard: list[str] = []
    assert sandbox.commands.run("echo one; echo two", on_stdout=heard.append).exit_code == 0
    assert "".join(heard) == "one\ntwo\n"
    begun = sandbox.commands.run("sleep 60", background=True)
    assert sandbox.commands.kill(begun.pid)


def files(sandbox: Sandbox) -> None:
    sandbox.files.write("dir/a.txt", "text")
    assert sandbox.files.read("dir/a.txt") == "text"
    assert [entry.name for entry in sandbox.files.list("dir")] == ["a.txt"]
    sandbox.files.remove("dir")
    assert not sandbox.files.exists("dir")


def watching(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("seen")
    handle = sandbox.files.watch_dir("seen")
    sandbox.files.write("seen/f", "x")
    deadline = time.monotonic() + 30
    while "f" not in [event.name for event in handle.get_new_events()]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    handle.stop()


def terminals(sandbox: Sandbox) -> None:
    from e2b.sandbox.commands.command_handle import PtySize

    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.send_stdin(terminal.pid, b"exit 0\n")
    terminal.wait()


def cells(_: Sandbox) -> None:
    from e2b_code_interpreter import Sandbox as Interpreter

    interpreter = Interpreter.create(timeout=60)
    try:
        interpreter.run_code("x = 41")
        assert interpreter.run_code("x + 1").text == "42"
    finally:
        interpreter.kill()


def try_feature(act: Callable[[Sandbox], None], sandbox: Sandbox) -> str:
    try:
        act(sandbox)
    except Exception as error:
        return f"no ({type(error).__name__})"
    return "yes"


sandbox = Sandbox.create(timeout=120)
found = [try_feature(act, sandbox) for act in (sandboxes, commands, files, watching, terminals, cells)]
sandbox.kill()
print(f"| {' | '.join([version('e2b'), version('e2b-code-interpreter'), *found])} |", flush=True)
os._exit(0)  # its own threads may abort an interpreter that is taken apart
