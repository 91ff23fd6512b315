"""`warmcell mcp` driven by the SDK's own client, over both transports and both eras of the protocol."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from tests.helpers import until_async
from tests.mcp_door.conftest import COMMAND, processes_with
from tests.mcp_door.requests import call

from warmcell.sessions.exchange import GRACE_SECONDS

pytestmark = pytest.mark.needs("user namespaces")
TOOLS = ["run_code", "run_command", "read_file", "write_file", "list_files", "apply_patch"]
WAYS = ["stdio", "stdio legacy", "http"]


@asynccontextmanager
async def connect(way: str, url: str, *options: str, **client: Any) -> AsyncIterator[Client]:
    program = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], *options])
    mode = "legacy" if way == "stdio legacy" else "auto"
    async with Client(url if way == "http" else program, mode=mode, **client) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
async def test_a_client_works_in_its_sandbox(way: str, url: str) -> None:
    async with connect(way, url) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert [name for name in tools if name in TOOLS] == TOOLS
        assert tools["read_file"].annotations.read_only_hint
        assert tools["run_command"].annotations.destructive_hint
        assert tools["run_code"].output_schema["required"] == ["status"]
        assert (await call(client, "run_code", code="print(6 * 7)"))["stdout"] == "42\n"
        assert (await call(client, "run_command", command="echo hi > a.txt; exit 3"))["exit_code"] == 3
        assert (await call(client, "read_file", path="a.txt"))["content"] == "hi\n"
        patch = "*** Begin Patch\n*** Update File: a.txt\n-hi\n+ho\n*** End Patch"
        assert (await call(client, "apply_patch", patch=patch))["changes"] == [{"path": "a.txt", "kind": "modified"}]
        assert "hunk 1" in (await call(client, "apply_patch", patch=patch))["misfits"][0]["reason"]
        await call(client, "write_file", path="ä/b c.bin", content="x")
        assert (await call(client, "read_file", path="/etc/passwd"))["status"] == "error"
        listed = {item.name: item for item in (await client.list_resources()).resources}
        assert set(listed) == {"a.txt", "ä/b c.bin"}
        assert (await client.read_resource(listed["ä/b c.bin"].uri)).contents[0].text == "x"
        assert (await client.list_resource_templates()).resource_templates[0].uri_template == "sandbox:///{+path}"
        for uri in ("sandbox:///none", "sandbox:///../x", "file:///etc/passwd", "sandbox://host/a.txt", "sandbox:///"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SHOWS = f"""
class Image:
    def _repr_png_(self):
        import base64
        return base64.b64decode("{PIXEL}")
Image()
"""


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_code_remembers_and_shows(way: str, url: str) -> None:
    async with connect(way, url) as client:
        await call(client, "run_code", code="x = 41")
        assert (await call(client, "run_code", code="x + 1"))["value"] == "42"
        failed = await call(client, "run_code", code="x / 0")
        assert failed["exit_code"] == 1
        assert "ZeroDivisionError" in failed["stderr"]
        assert (await call(client, "run_code", code="x", timeout_secs=30))["value"] == "41"
        late = await call(client, "run_code", code="import time\nwhile True: time.sleep(0.1)", timeout_secs=1)
        assert late["status"] == "timeout"
        assert (await call(client, "run_code", code="x"))["value"] == "41"
        assert (await call(client, "run_code", code="print(input())", stdin="in"))["stdout"] == "in\n"
        shown = await client.call_tool("run_code", {"code": SHOWS})
        (image,) = (block for block in shown.content if block.type == "image")
        assert (image.mime_type, image.data) == ("image/png", PIXEL)
        died = await call(client, "run_code", code="import os; os._exit(3)")
        assert (died["status"], died["fault"]) == ("error", "guest")
        assert "the variables are lost" in died["stderr"]
        assert "NameError" in (await call(client, "run_code", code="x"))["stderr"]
        await call(client, "run_code", code="x = 1")
        assert "NameError" in (await call(client, "run_code", code="x", restart=True))["stderr"]


async def test_state_can_be_declined(url: str) -> None:
    async with connect("stdio", url, "--stateless") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert "restart" not in tools["run_code"].input_schema["properties"]
        await call(client, "run_code", code="x = 41")
        assert "NameError" in (await call(client, "run_code", code="x"))["stderr"]


@pytest.mark.attack("PT-09")
async def test_a_cancelled_cell_ends_and_its_variables_stay(url: str) -> None:
    marker = f"warmcell-{secrets.token_hex(8)}"
    async with connect("http", url) as client:
        await call(client, "run_code", code="x = 41")
        code = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 300; echo {marker}'])"
        running = asyncio.create_task(client.call_tool("run_code", {"code": code, "timeout_secs": 300}))
        await until_async(lambda: processes_with(marker))
        running.cancel()
        await until_async(lambda: not processes_with(marker))
        assert (await call(client, "run_code", code="x"))["value"] == "41"


@pytest.mark.attack("PT-13")
async def test_cells_that_come_at_once_are_served_in_turn_and_a_client_may_leave_in_the_middle(url: str) -> None:
    marker = f"warmcell-{secrets.token_hex(8)}"
    async with connect("http", url) as client:
        await call(client, "run_code", code="x = 0")
        grow = "import time\nseen = x\ntime.sleep(0.02)\nx = seen + 1"
        await asyncio.gather(*(call(client, "run_code", code=grow) for _ in range(8)))
        assert (await call(client, "run_code", code="x"))["value"] == "8"
        code = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 300; echo {marker}'])"
        running = asyncio.create_task(client.call_tool("run_code", {"code": code, "timeout_secs": 300}))
        waiting = asyncio.create_task(client.call_tool("run_code", {"code": "x"}))
        await until_async(lambda: processes_with(marker))
        running.cancel()
        waiting.cancel()
    await until_async(lambda: not processes_with(marker))
    async with connect("http", url) as client:
        assert "NameError" in (await call(client, "run_code", code="x"))["stderr"]


async def test_clients_have_sandboxes_of_their_own(url: str) -> None:
    async with connect("http", url) as first, connect("http", url) as second:
        await call(first, "write_file", path="mine", content="x")
        assert (await call(second, "list_files"))["entries"] == []
        assert (await call(first, "list_files"))["entries"] != []


async def test_progress_tells_what_is_printed(url: str) -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    arguments = {"code": "import time\nfor n in range(999): print('line', n); time.sleep(0.4)", "timeout_secs": 60}
    async with connect("http", url) as client:
        running = asyncio.create_task(client.call_tool("run_code", arguments, progress_callback=hear))
        await until_async(lambda: len(told) > 1 and any(message for _, _, message in told))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert [progress for progress, _, _ in told] == sorted({progress for progress, _, _ in told})
    assert {total for _, total, _ in told} == {60.0}
    assert "line 0" in "".join(message or "" for _, _, message in told)


@pytest.mark.attack("PT-09")
@pytest.mark.parametrize("way", WAYS)
async def test_a_cancelled_call_kills_and_the_client_goes_on(way: str, url: str) -> None:
    """Before the time that a cell past its timeout has to end: the quickest of a few, since a machine can be busy."""
    async with connect(way, url) as client:
        await call(client, "write_file", path="kept", content="x")
        for name, text in ENDLESS:
            taken = [await seconds_to_cancel(client, name, text)]
            while min(taken) >= LONGEST and len(taken) < 5:
                taken.append(await seconds_to_cancel(client, name, text))
            assert min(taken) < LONGEST, taken
        assert [entry["path"] for entry in (await call(client, "list_files"))["entries"]] == ["kept"]


#: Seconds. A cancelled cell is killed after `CANCEL_SECONDS`, and later only if it had no processor.
LONGEST = 0.9 * GRACE_SECONDS
#: The last does not let itself be interrupted.
ENDLESS = [
    ("command", "sh -c 'sleep 300; echo {}'"),
    ("code", "import subprocess; subprocess.run(['sh', '-c', 'sleep 300; {}'])"),
    (
        "code",
        "import subprocess\np = subprocess.Popen(['sh', '-c', 'trap \"\" INT; sleep 300; {}'])\n"
        "while True:\n    try: p.wait()\n    except BaseException: pass",
    ),
]


async def seconds_to_cancel(client: Client, name: str, text: str) -> float:
    marker = f"warmcell-{secrets.token_hex(8)}"
    await client.call_tool("run_code", {"code": "1"})  # is told of the end of the one before, if it ended
    arguments = {name: text.format(marker), "timeout_secs": 300}
    running = asyncio.create_task(client.call_tool(f"run_{name}", arguments))
    await until_async(lambda: processes_with(marker))
    began = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_async(lambda: not processes_with(marker))
    return time.monotonic() - began


@pytest.mark.attack("PT-10")
async def test_what_a_client_of_http_runs_ends_with_its_session(url: str) -> None:
    marker = f"warmcell-{secrets.token_hex(8)}"
    async with connect("http", url) as client:
        command = {"command": f"sh -c 'sleep 300; echo {marker}'", "timeout_secs": 300}
        running = asyncio.create_task(client.call_tool("run_command", command))
        await until_async(lambda: processes_with(marker))
        running.cancel()
    await until_async(lambda: not processes_with(marker))


async def test_the_options_hold(url: str, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("from the host")
    options = [
        "--work-dir",
        str(tmp_path),
        "--language",
        "py",
        "--timeout",
        "60",
        "--env",
        "A=b",
        "--python",
        sys.executable,
    ]
    async with connect("stdio", url, *options) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert "run_command" not in tools
        assert tools["run_code"].input_schema["properties"]["language"]["enum"] == ["python"]
        code = "import os; print(os.environ['A'], open('given').read()); open('made', 'w').close()"
        assert (await call(client, "run_code", code=code))["stdout"] == "b from the host\n"
        assert (await call(client, "run_code", code="import anyio, sys; sys.prefix"))["value"] == repr(sys.prefix)
        assert (await call(client, "run_code", code="while True: pass", timeout_secs=1))["status"] == "timeout"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given", "made"]


async def test_long_output_is_linked(url: str) -> None:
    async with connect("http", url) as client:
        result = await client.call_tool("run_code", {"code": "print('x' * 100_000)"})
        (link,) = (block for block in result.content if block.type == "resource_link")
        assert (await client.read_resource(link.uri)).contents[0].text == "x" * 100_000 + "\n"


async def test_refusals_are_logged_to_clients_that_listen(url: str) -> None:
    heard: list[Any] = []

    async def hear(entry: Any) -> None:
        heard.append(entry)

    async with connect("stdio legacy", url, "--allow-domain", "a.example", logging_callback=hear) as client:
        code = "import urllib.request as u\nu.urlopen('http://b.example/', timeout=10)"
        answer = await call(client, "run_code", code=code, stdin="")
        assert answer["denials"][0]["hint"]
        await until_async(lambda: heard)
        assert heard[0].level == "warning"


@pytest.mark.attack("LK-11")
@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_no_error_names_a_path_of_the_host(way: str, url: str, tmp_path: Path) -> None:
    options = ["--work-dir", str(tmp_path)] if way == "stdio" else []
    async with connect(way, url, *options) as client:
        calls = [
            ("read_file", {"path": "none"}),
            ("read_file", {"path": f"{tmp_path}/x"}),
            ("run_command", {"command": "x", "cwd": "none"}),
            ("run_code", {"code": 3}),
            ("nothing", {}),
        ]
        for name, arguments in calls:
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert "/tmp" not in result.content[0].text
            assert "/home" not in result.content[0].text
