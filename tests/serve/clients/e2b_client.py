"""E2B's own SDK, unmodified, against a server of ours that E2B_API_URL and E2B_SANDBOX_URL name. Run by scripts/test-e2b."""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version

from e2b import AsyncSandbox, CommandExitException, Sandbox, TimeoutException


def commands_and_files() -> None:
    with Sandbox.create(timeout=120, envs={"A": "b"}, metadata={"for": "us"}) as sandbox:
        assert sandbox.commands.run("echo $A; pwd").stdout == "b\n/home/user\n"
        try:
            sandbox.commands.run("exit 3")
            raise AssertionError("it is reported as a failure")
        except CommandExitException as error:
            assert error.exit_code == 3
        heard: list[str] = []
        sandbox.commands.run("echo one; sleep 0.2; echo two", on_stdout=heard.append)
        assert "".join(heard) == "one\ntwo\n"
        background = sandbox.commands.run("cat", background=True, stdin=True)
        sandbox.commands.send_stdin(background.pid, "hello")
        assert [process.pid for process in sandbox.commands.list()] == [background.pid]
        assert sandbox.commands.kill(background.pid)
        try:
            sandbox.commands.run("sleep 60", timeout=1)
            raise AssertionError("it is reported as a failure")
        except TimeoutException:
            pass
        sandbox.files.write("dir/a.txt", "text")
        sandbox.files.write_files([{"path": "b", "data": b"\xff"}, {"path": "/tmp/c", "data": "c"}])
        assert sandbox.files.read("dir/a.txt") == "text"
        assert sandbox.files.read("b", format="bytes") == b"\xff"
        assert [entry.name for entry in sandbox.files.list(".")] == ["b", "dir"]
        assert sandbox.files.exists("b") and not sandbox.files.exists("none")
        assert sandbox.files.make_dir("made") and not sandbox.files.make_dir("made")
        assert Sandbox.connect(sandbox.sandbox_id).commands.run("cat /tmp/c").stdout == "c"
        assert sandbox.sandbox_id in [item.sandbox_id for item in Sandbox.list().next_items()]
        sandbox.set_timeout(60)
    assert not sandbox.is_running()


async def many_at_once() -> None:
    async def one(number: int) -> str:
        sandbox = await AsyncSandbox.create(timeout=120)
        try:
            return (await sandbox.commands.run(f"echo {number}")).stdout
        finally:
            await sandbox.kill()

    found = await asyncio.gather(*(one(number) for number in range(10)))
    assert found == [f"{number}\n" for number in range(10)]


def cells() -> None:
    from e2b_code_interpreter import Sandbox as Interpreter

    with Interpreter.create(timeout=120) as sandbox:
        sandbox.run_code("x = 20")
        assert sandbox.run_code("print('hi'); 2 * x + 2").text == "42"
        assert sandbox.run_code("1/0").error.name == "ZeroDivisionError"
        context = sandbox.create_code_context(language="javascript")
        assert sandbox.run_code("6 * 7", context=context).text == "42"
        assert sandbox.run_code("x", context=sandbox.create_code_context()).error.name == "NameError"
        try:
            sandbox.run_code("import time; time.sleep(60)", timeout=2)
            raise AssertionError("it is reported as a failure")
        except TimeoutException:
            pass
        assert sandbox.run_code("x").text == "20"


commands_and_files()
cells()
asyncio.run(many_at_once())
print(f"e2b {version('e2b')}: ok", flush=True)
os._exit(0)  # its own threads may abort an interpreter that is taken apart
